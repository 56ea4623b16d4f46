"""The text of a stream is what decoding all of its ids gives, whatever the ids."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders

from tickertape.api.detokenizer import Detokenizer
from tickertape.api.tokenizer import TextTokenizer
from tickertape.testing.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

REPLACEMENT = "\ufffd"


def _with_decoder(tokenizer: Tokenizer, decoder: decoders.Decoder) -> TextTokenizer:
    tokenizer.decoder = decoder
    return TextTokenizer(tokenizer)


def _without_decoder() -> TextTokenizer:
    spec = json.loads(byte_level_tokenizer().to_str())
    spec["decoder"] = None
    return TextTokenizer(Tokenizer.from_str(json.dumps(spec)))


def _with_odd_added_tokens() -> TextTokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["two words", "é", "naïve", "日本"])
    return TextTokenizer(tokenizer)


TOKENIZERS: dict[str, TextTokenizer] = {
    "byte_level": TextTokenizer(byte_level_tokenizer()),
    "byte_level_added": _with_odd_added_tokens(),
    "sentencepiece": TextTokenizer(sentencepiece_tokenizer()),
    "metaspace": _with_decoder(sentencepiece_tokenizer(), decoders.Metaspace()),
    "metaspace_never": _with_decoder(sentencepiece_tokenizer(), decoders.Metaspace(prepend_scheme="never")),
    "gemma": _with_decoder(
        sentencepiece_tokenizer(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ),
    "fallback_then_metaspace": _with_decoder(
        sentencepiece_tokenizer(), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    ),
    "regex_and_both_ends": _with_decoder(
        sentencepiece_tokenizer(),
        decoders.Sequence(
            [
                decoders.Replace(Regex("▁+"), " "),
                decoders.Strip("H", 1, 0),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 2, 0),
                decoders.Replace("e", "3"),
            ]
        ),
    ),
    "wordpiece": _with_decoder(sentencepiece_tokenizer(), decoders.WordPiece(prefix="▁", cleanup=True)),
    "no_decoder": _without_decoder(),
}


def stream(
    tokenizer: TextTokenizer, ids: Sequence[int], *, skip: bool = False, prefix: Sequence[int] = ()
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, prefix=prefix)
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


def _ids_of(tokenizer: TextTokenizer) -> st.SearchStrategy[list[int]]:
    known = st.integers(0, tokenizer.vocab_size - 1)
    byte_tokens = st.integers(3, 258) if tokenizer.vocab_size > 350 else st.integers(0x80, 0xFF)
    return st.lists(known | byte_tokens | st.integers(tokenizer.vocab_size, tokenizer.vocab_size + 50), max_size=40)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_the_stream_of_any_ids_is_their_decode(name: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(_ids_of(tokenizer))
    parts = stream(tokenizer, ids, skip=skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(parts) == whole
    assert whole.count(REPLACEMENT) == sum(part.count(REPLACEMENT) for part in parts)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n▁é你😀"), max_size=60))
def test_the_stream_of_any_text_is_its_decode(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert "".join(stream(tokenizer, ids, skip=True)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace", "gemma"])
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_behind_a_prefix_comes_what_follows_its_decode(name: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    prefix, ids = data.draw(_ids_of(tokenizer)), data.draw(_ids_of(tokenizer))
    before = tokenizer.decode(prefix, skip_special_tokens=skip)
    whole = tokenizer.decode([*prefix, *ids], skip_special_tokens=skip)
    if whole.startswith(before) and not before.endswith(REPLACEMENT):
        assert before + "".join(stream(tokenizer, ids, skip=skip, prefix=prefix)) == whole


def test_a_character_split_over_prefix_and_stream_comes_out_whole() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert "".join(stream(tokenizer, list("你".encode()[1:]), prefix=list("x你".encode()[:2]))) == "你"


@pytest.mark.parametrize(
    ("prefix", "ids", "text"),
    [
        (b"x\n", b"\n", "\n"),  # the run goes on: only what is new comes out
        (b"x\n", "你".encode(), "你"),
        (b"x\n" + "你".encode()[:1], "你".encode()[1:], "你"),
        (b"x\n", b"\xff", REPLACEMENT),  # the run breaks: one for each new byte
        (b"x\n" + "你".encode()[:1], b"\xff", REPLACEMENT * 2),
        (b"x\xffA", b"\n", REPLACEMENT),  # the run was broken before
        (b"x\xff\n", b"y", "y"),
    ],
)
def test_a_run_of_byte_tokens_may_cross_the_prefix(prefix: bytes, ids: bytes, text: str) -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    letters = {letter: tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "xy"}
    before, after = ([letters.get(chr(byte), 3 + byte) for byte in data] for data in (prefix, ids))
    assert "".join(stream(tokenizer, after, prefix=before)) == text


def test_a_long_prefix_is_not_walked() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    prefix = tokenizer.encode("the cat sat " * 20_000, add_special_tokens=True)
    began = time.thread_time()
    parts = stream(tokenizer, tokenizer.encode("on the mat", add_special_tokens=False), prefix=prefix)
    assert time.thread_time() - began < 0.005
    assert "".join(parts) == " on the mat"


@pytest.mark.parametrize(
    "text",
    [
        "the cat sat on the mat",
        "  two  spaces",
        " one space",
        "a line\n    and indent",
        '{"a": 1}',
        "你好 world",
        "😀",
        "👨‍👩‍👧‍👦 family, 👍🏽 skin",
        "éàü ß",
    ],
)
@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_real_text_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=True)
    parts = stream(tokenizer, ids, skip=True)
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


@pytest.mark.parametrize(("text", "cuts"), [("你", (2, 1)), ("😀", (2, 2)), ("😀", (1, 1, 1, 1)), ("é", (1, 1))])
def test_a_split_character_waits_for_its_last_byte(text: str, cuts: tuple[int, ...]) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    vocabulary = {tokenizer.token_bytes(id): id for id in range(tokenizer.vocab_size)}
    data, ids = text.encode(), []
    for cut in cuts:
        piece, data = data[:cut], data[cut:]
        ids.append(vocabulary[piece])
    assert stream(tokenizer, ids) == [""] * (len(cuts) - 1) + [text, ""]


def test_a_zwj_sequence_goes_out_character_by_character() -> None:
    parts = stream(TOKENIZERS["byte_level"], list("👨‍👩‍👧".encode()))
    assert [part for part in parts if part] == list("👨‍👩‍👧")


def test_the_first_word_after_bos_keeps_nothing_it_did_not_have() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode('{"', add_special_tokens=True)
    brace = next(id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) == b'{"')
    assert "".join(stream(tokenizer, [brace], skip=True)) == '{"'
    assert "".join(stream(tokenizer, ids, skip=True)) == '{"'


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("Hello<|im_end|>", add_special_tokens=False)
    assert "".join(stream(tokenizer, ids, skip=True)) == "Hello"
    assert "".join(stream(tokenizer, ids)) == "Hello<|im_end|>"


def test_an_unfinished_end_is_released_by_finish() -> None:
    assert stream(TOKENIZERS["byte_level"], list(b"a\xf0\x9f")) == ["a", "", "", REPLACEMENT]
    assert stream(TOKENIZERS["sentencepiece"], [3 + 0xF0, 3 + 0x9F]) == ["", "", REPLACEMENT * 2]


@pytest.mark.parametrize(("name", "first"), [("byte_level", 0x80), ("sentencepiece", 3 + 0x80)])
def test_invalid_bytes_are_neither_held_nor_slow(name: str, first: int) -> None:
    ids = [first] * 10_000
    began = time.thread_time()
    parts = stream(TOKENIZERS[name], ids)
    assert time.thread_time() - began < 0.5
    assert parts == [REPLACEMENT] * 10_000 + [""]


def test_a_long_run_of_byte_tokens_is_linear() -> None:
    ids = [3 + byte for byte in "é".encode()] * 20_000
    began = time.thread_time()
    parts = stream(TOKENIZERS["sentencepiece"], [*ids, 3 + 0xFF])
    assert time.thread_time() - began < 1.0
    assert "".join(parts) == REPLACEMENT * 40_001


def test_a_run_of_byte_tokens_goes_out_when_it_ends() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("x\n\n你y", add_special_tokens=False)
    assert [part for part in stream(tokenizer, ids) if part] == ["x", "\n\n你y"]
