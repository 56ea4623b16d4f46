"""Stop strings: found wherever they lie, and nothing held that cannot begin one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.api.stop_strings import StopStrings


def reference(stops: Sequence[str], text: str, *, include: bool) -> tuple[str, str | None]:
    """Sees the whole text: the earliest end of any stop string, the longest of those that end there."""
    for end in range(len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def held_by(stops: Sequence[str], text: str) -> str:
    ends = [text[start:] for start in range(len(text))]
    return next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")


def run(stops: Sequence[str], chunks: Sequence[str], *, include: bool = False) -> tuple[list[str], str | None]:
    search, out, matched = StopStrings(stops, include=include), [], None
    for chunk in chunks:
        text, matched = search.feed(chunk)
        out.append(text)
        if matched is not None:
            break
    return [*out, search.flush()], matched


def cut(text: str, at: Sequence[int]) -> list[str]:
    edges = [0, *sorted(n % (len(text) + 1) for n in at), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=5)
TEXT = st.text("abc", max_size=40)
CUTS = st.lists(st.integers(0, 60), max_size=12)


@given(stops=STOPS, text=TEXT, at=CUTS, include=st.booleans())
def test_any_chunking_gives_what_the_whole_text_gives(
    stops: list[str], text: str, at: list[int], include: bool
) -> None:
    parts, matched = run(stops, cut(text, at), include=include)
    assert ("".join(parts), matched) == reference(stops, text, include=include)


@given(stops=STOPS, text=TEXT, at=CUTS)
def test_exactly_the_longest_possible_beginning_is_held(stops: list[str], text: str, at: list[int]) -> None:
    search, seen, out = StopStrings(stops, include=False), "", ""
    for chunk in cut(text, at):
        seen += chunk
        part, matched = search.feed(chunk)
        out += part
        if matched is not None:
            return
        assert out + held_by(stops, seen) == seen


@given(stops=STOPS, text=TEXT)
def test_the_order_of_the_list_is_of_no_matter(stops: list[str], text: str) -> None:
    assert run(stops, [text]) == run(stops[::-1], [text])


def test_pieces_of_a_stop_string_are_never_shown() -> None:
    assert run(["DEFGHIJ"], ["ABC ", "DEF", "G", "HI", "J", " KLM"]) == (["ABC ", "", "", "", "", ""], "DEFGHIJ")


def test_a_near_miss_comes_out_whole_and_in_order() -> None:
    parts, matched = run(["DEFGHIJ"], ["ABC ", "DEF", "G", "HI", "X"])
    assert (parts, matched) == (["ABC ", "", "", "", "DEFGHIX", ""], None)


def test_a_beginning_at_the_end_of_the_text_is_flushed() -> None:
    assert run(["DEFGHIJ"], ["ABC DEF"]) == (["ABC ", "DEF"], None)


@pytest.mark.parametrize(("include", "text"), [(False, "foo"), (True, "foo.")])
def test_inside_a_token_nothing_behind_the_stop_is_shown(include: bool, text: str) -> None:
    assert run(["."], ["foo.bar"], include=include) == ([text, ""], ".")


def test_a_stop_that_never_comes_delays_nothing() -> None:
    assert run(["ZZZZZZZZ"], ["a", "b", "c"]) == (["a", "b", "c", ""], None)


def test_the_first_to_be_complete_wins_and_then_the_longest() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa", ""], "bc")
    assert run(["bc", "abc"], ["xabcd"]) == (["x", ""], "abc")


def test_after_a_match_nothing_goes_out() -> None:
    search = StopStrings(["."], include=True)
    assert search.feed("a.b") == ("a.", ".")
    assert search.feed("c") == ("", ".")
    assert search.flush() == ""


def test_special_characters_of_patterns_are_plain_text() -> None:
    assert run(["]", "^-", "\\"], ["a^b\\c"]) == (["a^b", ""], "\\")
    assert run(["]", "^-"], ["a^", "-b"]) == (["a", "", ""], "^-")


def test_no_stops_let_everything_pass() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["x", ""], include=False)


@pytest.mark.parametrize("chunk", [1, 7, 200_000])
def test_the_worst_texts_take_linear_time(chunk: int) -> None:
    stops = ["a" * n + "b" for n in range(1, 200)] + ["a" * 5_000 + "b"]
    text = ("a" * 9_999 + "c") * 20
    search = StopStrings(stops, include=False)
    began = time.thread_time()
    out = "".join([search.feed(text[n : n + chunk])[0] for n in range(0, len(text), chunk)]) + search.flush()
    assert time.thread_time() - began < 2.0
    assert out == text
