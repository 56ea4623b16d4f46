"""The parts of one choice from its tokens, below every wire."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.events import Piece
from tickertape.api.part_stream import PartStream
from tickertape.api.stop_strings import StopStrings
from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.output_parser import ModelSigns, ParserContext
from tickertape.core.request import Finish, TokenDelta, TokenLogprobs
from tickertape.plugins.output_parsers import choose_parsers
from tickertape.testing.front import built_in_parsers, spoken
from tickertape.testing.tokenizers import write_byte_level

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_byte_level(directory)
    return TextTokenizer.from_directory(directory)


def make(
    tokenizer: TextTokenizer,
    stops: Sequence[str] = (),
    *,
    include: bool = False,
    min_tokens: int = 0,
    reasoning: str = "think",
    tools: str = "hermes",
) -> PartStream:
    parsers = choose_parsers(built_in_parsers(), ModelSigns(), reasoning=reasoning, tools=tools)
    return PartStream(
        0,
        Detokenizer(tokenizer, skip_special_tokens=True),
        parsers.open(ParserContext(tools={"f": {}})),
        StopStrings(stops, include=include) if stops else None,
        include_stop=include,
        min_tokens=min_tokens,
        with_tokens=True,
        with_logprobs=True,
    )


def push(stream: PartStream, tokens: Sequence[int], finish: Finish | None = None) -> list[Piece]:
    entries = tuple(TokenLogprobs((token,), (-1.0,), 1) for token in tokens)
    return list(stream.push(TokenDelta(tuple(tokens), logprobs=entries, finish=finish)))


def run(stream: PartStream, text: str, finish: Finish | None = None) -> list[Piece]:
    """Token by token, up to the end."""
    pieces: list[Piece] = []
    tokens = spoken(text)
    for n, token in enumerate(tokens):
        pieces += push(stream, [token], finish if n == len(tokens) - 1 else None)
        if stream.finish is not None:
            break
    return pieces


def content(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == "content")


def entries(pieces: Sequence[Piece]) -> str:
    return bytes(entry.ids[0] for piece in pieces for entry in piece.logprobs or ()).decode()


def test_the_entries_of_a_stop_string_are_not_handed_out(tokenizer: TextTokenizer) -> None:
    pieces = run(make(tokenizer, ["END"]), "<think>so</think>one END two")
    assert content(pieces) == "one "
    assert entries(pieces) == "<think>so</think>one "
    shown = run(make(tokenizer, ["END"], include=True), "<think>so</think>one END two")
    assert content(shown) == "one END"
    assert entries(shown) == "<think>so</think>one END"
    # All in one delta: what came behind the stop string in it is not counted.
    stream = make(tokenizer, ["END"])
    at_once = push(stream, spoken("one END two"), Finish("stop"))
    assert (content(at_once), entries(at_once)) == ("one ", "one ")
    assert stream.num_tokens == len("one END")


def test_stop_strings_count_after_min_tokens(tokenizer: TextTokenizer) -> None:
    text = "<think>x</think>a a a"
    assert content(run(make(tokenizer, ["a"], min_tokens=18), text, Finish("length"))) == "a "
    assert content(run(make(tokenizer, ["a"], min_tokens=100), text, Finish("length"))) == "a a a"


def test_a_stop_string_does_not_reach_over_a_call(tokenizer: TextTokenizer) -> None:
    pieces = run(make(tokenizer, ["ab"]), f"a{CALL}b", Finish("length"))
    assert content(pieces) == "ab"
    assert [piece.text for piece in pieces if piece.text] == ["a", "b"]


def test_every_piece_is_of_one_kind_and_the_last_has_the_finish(tokenizer: TextTokenizer) -> None:
    stream = make(tokenizer)
    pieces = push(stream, spoken(f"<think>so</think>one{CALL}"), Finish("length"))
    for piece in pieces[:-1]:
        assert piece.finish is None
        assert (piece.call is None) == bool(piece.text)
    assert pieces[-1].finish == stream.finish == "length"
    assert not pieces[-1].text
    assert pieces[-1].call is None


def test_the_end_of_the_model_behind_a_call_is_the_end_of_calls(tokenizer: TextTokenizer) -> None:
    for text, reason in ((CALL, "tool_calls"), ("words", "stop")):
        stream = make(tokenizer)
        run(stream, text)
        [last] = push(stream, [], Finish("stop"))[-1:]
        assert last.finish == reason


def test_tokens_are_reasoning_or_not(tokenizer: TextTokenizer) -> None:
    for text, count in (
        ("<think>so</think>one", len("<think>so")),
        ("<think></think>one", 0),
        ("one", 0),
        ("<think>so</thi", len("<think>so</thi")),  # it turns out to be no tag
    ):
        stream = make(tokenizer)
        run(stream, text)
        push(stream, [], Finish("length"))
        assert stream.num_reasoning_tokens == count, text


def test_a_stop_string_does_not_reach_over_reasoning(tokenizer: TextTokenizer) -> None:
    text = "<|channel|>final<|message|>one EN<|end|><|start|>assistant<|channel|>analysis<|message|>D hm<|end|>"
    stream = make(tokenizer, ["END"], reasoning="gpt_oss", tools="gpt_oss")
    pieces = run(stream, text, Finish("length"))
    assert content(pieces) == "one EN"
    kinds = [piece.kind for piece in pieces if piece.text]
    assert kinds == sorted(kinds)  # all of the content first: what was held too


def test_a_stop_token_is_not_shown(tokenizer: TextTokenizer) -> None:
    stream = make(tokenizer)
    push(stream, spoken("<think>hm</think>one"))
    pieces = push(stream, spoken("c"), Finish("stop", ord("c")))
    assert content(pieces) == ""
    assert (stream.stop_reason, stream.num_tokens) == (ord("c"), 21)
    assert pieces[-1].tokens == (ord("c"),)
