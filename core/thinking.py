"""A constraint that leaves alone what is thought before the answer, and ends it when it becomes too much."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tickertape.core.errors import RowError
from tickertape.core.grammar import Constraint
from tickertape.core.request import Thinking

__all__ = ["ThinkingConstraint"]


class ThinkingConstraint:
    """Implements `Constraint`. The end of the thinking is found in the text, so it does not matter which tokens write
    it; where it is forced, and where a start is offered beside an answer, they are the tokens of `thinking`.

    `answer` holds what comes after the thinking; None: nothing does. While one is due, stop tokens are not sampled.
    """

    def __init__(
        self,
        thinking: Thinking,
        answer: Constraint | None,
        bytes_of: Callable[[int], bytes],
        stop_tokens: Collection[int],
        mask_words: int,
    ) -> None:
        self._thinking = thinking
        self._answer = answer
        self._bytes_of = bytes_of
        self._stops = tuple(stop_tokens)
        self._mask_words = mask_words
        self._start = thinking.start.encode()
        self._end = thinking.end.encode()
        self._phase: Literal["before", "starting", "thinking", "ending", "answer"] = "before"
        self._forced: list[int] = []  # what is left of a start or an end that has begun
        self._seen = b""  # before: the text so far; thinking: its last bytes
        self._num_thought = 0
        if thinking.opened:
            self._think()

    @property
    def is_done(self) -> bool:
        return self._phase == "answer" and self._answer is not None and self._answer.is_done

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._accept(token)

    def fill(self, line: NDArray[np.int32]) -> None:
        if self._forced:
            line[:] = 0
            _allow(line, self._forced[0])
        elif self._answer is None:
            line[:] = -1
        elif self._phase == "answer":
            self._answer.fill(line)
        elif self._phase == "before":
            self._answer.fill(line)
            _allow(line, self._thinking.start_tokens[0])
        else:
            line[:] = -1
            for token in self._stops:
                _forbid(line, token)

    def _accept(self, token: int) -> None:
        if self._forced:
            if token != self._forced.pop(0):
                raise RowError("the output left its grammar: the thinking was to begin or to end here")
            if not self._forced:
                self._think() if self._phase == "starting" else self._reply()
        elif self._phase == "answer":
            if self._answer is not None:
                self._answer.accept((token,))
        elif self._phase == "thinking":
            self._num_thought += 1
            self._go_on(self._bytes_of(token))
        elif self._answer is not None:
            self._choose(token, self._answer)
        else:
            self._seen += self._bytes_of(token)
            text = self._seen.lstrip()
            if text.startswith(self._start):
                self._think()
                self._go_on(text[len(self._start) :])
            elif not self._start.startswith(text):
                self._reply()

    def _choose(self, token: int, answer: Constraint) -> None:
        """The first token: of the answer where that may begin so, else of the thinking."""
        first, *rest = self._thinking.start_tokens
        if token == first and not self._may_begin(answer, token):
            self._phase, self._forced = "starting", rest
            if not rest:
                self._think()
        else:
            self._reply()
            answer.accept((token,))

    def _may_begin(self, answer: Constraint, token: int) -> bool:
        line: NDArray[np.int32] = np.zeros(self._mask_words, dtype=np.int32)
        answer.fill(line)
        return bool(int(line.view(np.uint32)[token >> 5]) >> (token & 31) & 1)

    def _think(self) -> None:
        self._phase = "thinking"
        self._seen = b""
        self._check_budget()

    def _go_on(self, more: bytes) -> None:
        text = self._seen + more
        _, found, behind = text.partition(self._end)
        if not found:
            self._seen = text[max(0, len(text) - len(self._end) + 1) :]
            self._check_budget()
            return
        if behind.strip() and self._answer is not None:
            raise RowError("the output left its grammar: a token holds the end of the thinking and what follows it")
        self._reply()

    def _check_budget(self) -> None:
        budget = self._thinking.budget
        if budget is not None and self._num_thought >= budget:
            self._phase, self._forced = "ending", list(self._thinking.end_tokens)

    def _reply(self) -> None:
        self._phase = "answer"
        self._seen = b""


def _allow(line: NDArray[np.int32], token: int) -> None:
    line.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def _forbid(line: NDArray[np.int32], token: int) -> None:
    if token >> 5 < len(line):
        line.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
