"""The text of one choice: any way of cutting its tokens into deltas gives the same text, entries and end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Piece
from tickertape.api.stop_strings import StopStrings
from tickertape.api.text_stream import TextStream
from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.request import Finish, TokenDelta, TokenLogprobs
from tickertape.testing.tokenizers import byte_level_tokenizer

EOS = 400


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_level_tokenizer())


class Gathered:
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.text = "".join(piece.text for piece in pieces)
        self.tokens = [token for piece in pieces for token in piece.tokens]
        self.entries = [entry.ids[0] for piece in pieces for entry in piece.logprobs or ()]
        self.offsets = [offset for piece in pieces for offset in piece.offsets]
        self.end = [(piece.finish, piece.stop_reason) for piece in pieces if piece.finish is not None]
        for piece in pieces[:-1]:
            assert piece.finish is None
            assert piece.text or piece.tokens


def play(
    tokenizer: TextTokenizer,
    deltas: Sequence[Sequence[int]],
    stops: Sequence[str],
    *,
    ended_by: int | None = None,
    include: bool = False,
    min_tokens: int = 0,
) -> tuple[Gathered, TextStream]:
    stream = TextStream(
        0,
        Detokenizer(tokenizer, skip_special_tokens=True),
        StopStrings(stops, include=include) if stops else None,
        min_tokens=min_tokens,
        include_stop=include,
        with_tokens=True,
        with_logprobs=True,
        end_tokens=frozenset({EOS}),
    )
    pieces: list[Piece] = []
    for n, tokens in enumerate(deltas):
        last = n == len(deltas) - 1
        reason: Finish | None = None
        if last:
            reason = Finish("length") if ended_by is None else Finish("stop", ended_by)
        entries = tuple(TokenLogprobs((token,), (-1.0,), 1) for token in tokens)
        pieces.extend(stream.push(TokenDelta(tuple(tokens), logprobs=entries, finish=reason)))
        if stream.finish is not None:
            break
    return Gathered(pieces), stream


def cut(tokens: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    edges = [0, *sorted({edge % (len(tokens) + 1) for edge in cuts} - {0, len(tokens)}), len(tokens)]
    return [list(tokens[start:end]) for start, end in pairwise(edges)]


texts = st.text(alphabet="ab.你😀é ", max_size=24)


stop_lists = st.lists(st.sampled_from(["ab", "b", "a.a", "你", "😀a", " ", "aab"]), max_size=3)


@given(texts, stop_lists, st.lists(st.integers(0, 99)), st.booleans())
def test_cutting_changes_nothing(
    tokenizer: TextTokenizer, text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    tokens = [*text.encode()]
    whole, alone = play(tokenizer, [tokens], stops, include=include)
    pieces, cut_stream = play(tokenizer, cut(tokens, cuts), stops, include=include)
    assert vars(whole) == vars(pieces)
    assert alone.num_tokens == cut_stream.num_tokens == len(pieces.tokens)
    if pieces.end[0][0] == "length":
        assert pieces.text == text
        assert pieces.tokens == pieces.entries == tokens
    else:
        stop = pieces.end[0][1]
        assert stop in stops
        end = text.index(str(stop)) if not include else text.index(str(stop)) + len(str(stop))
        assert pieces.text == text[:end]
        assert bytes(pieces.entries).decode() == text[:end]


@given(texts, st.lists(st.integers(0, 99)))
def test_offsets_are_where_the_tokens_text_starts(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    found, _ = play(tokenizer, cut([*text.encode()], cuts), [])
    position = [len(text.encode()[:n].decode(errors="ignore")) for n in range(len(text.encode()))]
    assert found.offsets == position


def test_what_comes_after_the_stop_is_neither_counted_nor_delivered(tokenizer: TextTokenizer) -> None:
    found, stream = play(tokenizer, [[*b"one STOP two"]], ["STOP"])
    assert (found.text, found.end) == ("one ", [("stop", "STOP")])
    assert found.tokens == [*b"one STOP"]
    assert found.entries == [*b"one "]
    assert stream.num_tokens == len(b"one STOP")


def test_an_end_token_is_counted_and_not_shown(tokenizer: TextTokenizer) -> None:
    found, stream = play(tokenizer, [[*b"ab"], [EOS]], [], ended_by=EOS)
    assert (found.text, found.end, found.tokens, found.entries) == ("ab", [("stop", None)], [*b"ab", EOS], [*b"ab"])
    assert stream.num_tokens == 3


def test_a_stop_token_of_the_client_is_named(tokenizer: TextTokenizer) -> None:
    stop = ord("c")
    hidden, _ = play(tokenizer, [[*b"abc"]], [], ended_by=stop)
    assert (hidden.text, hidden.end) == ("ab", [("stop", stop)])
    shown, _ = play(tokenizer, [[*b"abc"]], [], ended_by=stop, include=True)
    assert (shown.text, shown.end) == ("abc", [("stop", stop)])


def test_stop_strings_wait_for_min_tokens(tokenizer: TextTokenizer) -> None:
    found, _ = play(tokenizer, [[*b"abXabXab"]], ["X"], min_tokens=3)
    assert found.text == "abXab"


def test_a_stop_string_may_end_with_held_text(tokenizer: TextTokenizer) -> None:
    half = "😀".encode()[:2]
    found, _ = play(tokenizer, [[*b"ok"], [*half]], ["�"])
    assert (found.text, found.end) == ("ok", [("stop", "�")])
