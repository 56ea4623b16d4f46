"""Thinking before a constrained answer: left alone, told from the answer by its text, ended by its budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tickertape.core.errors import RowError
from tickertape.core.request import Thinking
from tickertape.core.thinking import ThinkingConstraint

WORDS = 10  # ids 0..255 are bytes, those above them longer
END = 300  # "</t>" in one token
END_AND_MORE = 301  # "t>x"
SPACED_END = 302  # "t>\n\n"
STOP = 310
LONG = {END: b"</t>", END_AND_MORE: b"t>x", SPACED_END: b"t>\n\n", STOP: b"<stop>"}


class Spells:
    """Takes one text, byte by byte."""

    def __init__(self, text: str) -> None:
        self.left = list(text.encode())

    @property
    def is_done(self) -> bool:
        return not self.left

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token != self.left.pop(0):
                raise RowError("not the text")

    def fill(self, line: NDArray[np.int32]) -> None:
        line[:] = 0
        line.view(np.uint32)[self.left[0] >> 5] |= np.uint32(1 << (self.left[0] & 31))


def constraint(
    answer: str | None = "ok", *, opened: bool = False, budget: int | None = None, start: str = "<t>"
) -> ThinkingConstraint:
    thinking = Thinking(start, "</t>", tuple(start.encode()), (END,), opened=opened, budget=budget)
    inner = None if answer is None else Spells(answer)
    return ThinkingConstraint(thinking, inner, lambda token: LONG.get(token, bytes([token & 255])), [STOP], WORDS)


def allowed(made: ThinkingConstraint) -> set[int]:
    line: NDArray[np.int32] = np.full(WORDS, 7, dtype=np.int32)
    made.fill(line)
    words = line.view(np.uint32)
    return {token for token in range(WORDS * 32) if int(words[token >> 5]) >> (token & 31) & 1}


EVERYTHING = set(range(WORDS * 32))


def test_thinking_is_free_and_the_answer_is_not() -> None:
    made = constraint()
    assert allowed(made) == {ord("o"), ord("<")}  # the answer, or the first of the tag
    made.accept(b"<")
    assert allowed(made) == {ord("t")}
    made.accept(b"t>")
    assert allowed(made) == EVERYTHING - {STOP}
    made.accept(b"anything, <t> and </ too")
    made.accept([END])
    assert allowed(made) == {ord("o")}
    made.accept(b"o")
    assert not made.is_done
    made.accept(b"k")
    assert made.is_done


def test_the_answer_may_come_at_once() -> None:
    made = constraint()
    made.accept(b"ok")
    assert made.is_done


def test_an_answer_that_begins_as_the_tag_does_comes_first() -> None:
    made = constraint("<ok")
    assert allowed(made) == {ord("<")}
    made.accept(b"<")
    assert allowed(made) == {ord("o")}


@pytest.mark.parametrize("end", [list(b"</t>"), [END], [ord("<"), ord("/"), SPACED_END], list(b"</</t>")])
def test_the_end_is_found_in_the_text_whichever_tokens_write_it(end: list[int]) -> None:
    made = constraint(opened=True)
    made.accept([*b"hm ", *end])
    assert allowed(made) == {ord("o")}


def test_a_token_must_not_hold_the_end_and_an_answer() -> None:
    made = constraint(opened=True)
    with pytest.raises(RowError, match="what follows it"):
        made.accept([*b"hm </", END_AND_MORE])
    free = constraint(None, opened=True)
    free.accept([*b"hm </", END_AND_MORE])
    assert allowed(free) == EVERYTHING


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("answer", [None, "ok"])
def test_the_budget_forces_the_end(budget: int, answer: str | None) -> None:
    made = constraint(answer, opened=True, budget=budget)
    made.accept(b"x" * budget)
    assert allowed(made) == {END}
    made.accept([END])
    assert allowed(made) == (EVERYTHING if answer is None else {ord("o")})


def test_a_budget_that_is_not_used_up_forces_nothing() -> None:
    made = constraint(opened=True, budget=9)
    made.accept([*b"hm", END])
    assert allowed(made) == {ord("o")}


def test_a_start_is_found_in_free_text_behind_white_space_only() -> None:
    made = constraint(None, budget=1)
    made.accept(b"\n <t>x")
    assert allowed(made) == {END}
    plain = constraint(None, budget=1)
    plain.accept(b"a <t>xxx")
    assert allowed(plain) == EVERYTHING
    assert not plain.is_done


def test_another_token_than_the_forced_one_is_a_fault() -> None:
    made = constraint(opened=True, budget=0)
    with pytest.raises(RowError):
        made.accept(b"x")


def test_output_that_is_replayed_leads_to_the_same_place() -> None:
    text = [*b"<t>hm", END, ord("o")]
    whole, stepped = constraint(budget=50), constraint(budget=50)
    whole.accept(text)
    for token in text:
        assert token in allowed(stepped)
        stepped.accept([token])
    assert allowed(whole) == allowed(stepped) == {ord("k")}
