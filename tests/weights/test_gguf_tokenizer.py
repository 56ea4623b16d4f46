"""The tokenizer that comes out of a GGUF vocabulary: whole round trips, right splits, special tokens kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tickertape.core.errors import StartupError
from tickertape.weights.gguf.tokenizer import make_tokenizer

BYTES = [chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256))] + [chr(256 + n) for n in range(68)]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "1 2", "12 3"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "Hello, world!", "  two   spaces ", "\n\n\ttabs\r\n", "1234 3.14 a1b2", "I'll we've DON'T", "çà va ÄÖÜ ß",
    "日本語のテキスト", "🎉👩‍👩‍👧 e\u0301", "null\0byte", "ends in space ", "hello hello", "\u200b\ufeff", "мир 123",
]  # fmt: skip


def byte_level(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    tokens = [*SPECIALS, *BYTES, *(merge.replace(" ", "") for merge in MERGES), "<tool>"]
    kinds = [3, 3, 3, *[1] * (len(tokens) - 4), 4]
    fields: dict[str, Any] = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": MERGES}
    fields |= {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 2, "unknown_token_id": 0, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def sentence_piece(**more: Any) -> dict[str, Any]:
    pieces = {
        "▁": -9.0,
        "h": -8.0,
        "e": -7.0,
        "l": -6.0,
        "o": -5.0,
        "el": -9.5,
        "he": -1.0,
        "ll": -2.0,
        "▁he": -3.0,
        "llo": -2.5,
    }
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *pieces]
    scores = [0.0] * 259 + list(pieces.values())
    fields: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * 10],
    }
    fields |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def build(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    made = make_tokenizer("x.gguf", metadata)
    return Tokenizer.from_str(made["tokenizer.json"].decode()), made["tokenizer_config.json"]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the pre-tokeniser makes of a text, in characters."""
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "tekken"])
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_round_trips(pre: str, text: str) -> None:
    tokenizer, _ = build(byte_level(pre))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_round_trips(text: str) -> None:
    for metadata in (byte_level(), sentence_piece()):
        tokenizer, _ = build(metadata)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if not any(special in text for special in (*SPECIALS, "<tool>", "<s>", "</s>", "<unk>")) and "▁" not in text:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("pre", "text", "split"),
    [
        ("smollm", "I'll pay 123 now\n\n  ok", ["I", "'ll", " pay", " ", "1", "2", "3", " now", "\n\n ", " ok"]),
        ("gpt-2", "I'll pay 123 now", ["I", "'ll", " pay", " 123", " now"]),
        ("llama-bpe", "I'LL pay 12345\n\n now", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " now"]),
        ("qwen2", "I'LL pay 123\n\n now", ["I", "'LL", " pay", " ", "1", "2", "3", "\n\n", " now"]),
        ("tekken", "camelCase 12 a/b\n", ["camel", "Case", " ", "1", "2", " a", "/b", "\n"]),
    ],
)
def test_words_are_split_as_the_model_was_trained(pre: str, text: str, split: list[str]) -> None:
    assert words(build(byte_level(pre))[0], text) == split


def test_merges_apply_in_order() -> None:
    tokenizer, _ = build(byte_level("gpt-2"))
    assert tokenizer.encode("hello 123").tokens == ["hello", "Ġ", "123"]
    assert build(byte_level("smollm"))[0].encode("123").tokens == ["1", "2", "3"]  # digits never merge


def with_world(pre: str) -> dict[str, Any]:
    metadata = byte_level(pre, add_bos_token=False)
    metadata["tokenizer.ggml.tokens"].append("world")
    metadata["tokenizer.ggml.token_type"].append(1)
    return metadata


def test_a_known_word_needs_no_merges_where_the_model_learnt_without() -> None:
    assert build(with_world("llama-bpe"))[0].encode("world").tokens == ["world"]
    assert build(with_world("gpt-2"))[0].encode("world").tokens == ["w", "o", "r", "l", "d"]


def test_qwen_composes_letters_and_merges_every_word() -> None:
    tokenizer, _ = build(byte_level("qwen2"))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids
    assert build(with_world("qwen2"))[0].encode("world").tokens == ["w", "o", "r", "l", "d"]


def test_ids_are_the_positions_in_the_file() -> None:
    metadata = byte_level()
    tokenizer, _ = build(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokenizer.id_to_token(index) for index in range(len(tokens))] == tokens
    assert tokenizer.get_vocab_size(with_added_tokens=True) == len(tokens)


def test_special_tokens_are_one_id_and_can_be_left_out() -> None:
    tokenizer, config = build(byte_level())
    ids = tokenizer.encode("<|im_start|>user\nhello<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhello<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhello"
    tool = tokenizer.encode("a<tool>b").tokens
    assert tool == ["a", "<tool>", "b"]
    assert tokenizer.decode(tokenizer.encode("a<tool>b").ids, skip_special_tokens=True) == "a<tool>b"  # not special
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )


@pytest.mark.parametrize(
    ("metadata", "before", "after"),
    [
        (byte_level(), [], []),
        (byte_level(add_bos_token=True), [1], []),
        (byte_level(add_bos_token=True, add_eos_token=True), [1], [2]),
        (byte_level("llama-bpe"), [1], []),
        (byte_level("llama-bpe", add_bos_token=False), [], []),
        (sentence_piece(), [1], []),
        (sentence_piece(add_bos_token=False, add_eos_token=True), [], [2]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(metadata: dict[str, Any], before: list[int], after: list[int]) -> None:
    tokenizer, config = build(metadata)
    plain = tokenizer.encode("hello", add_special_tokens=False).ids
    assert tokenizer.encode("hello").ids == before + plain + after
    assert (config["add_bos_token"], config["add_eos_token"]) == (bool(before), bool(after))


def test_sentence_piece_merges_by_score() -> None:
    tokenizer, _ = build(sentence_piece())
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["▁he", "llo"]
    assert tokenizer.encode("ell", add_special_tokens=False).tokens == ["▁", "e", "ll"]  # though "el" is earlier
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("  hello é ").ids) == "  hello é "


def test_without_a_space_prefix() -> None:
    tokenizer, _ = build(sentence_piece(add_space_prefix=False))
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["he", "llo"]
    assert tokenizer.decode(tokenizer.encode(" hello", add_special_tokens=False).ids) == " hello"


@pytest.mark.parametrize(
    ("metadata", "code", "word"),
    [
        ({}, "UnsupportedTokenizer", "no tokenizer"),
        (byte_level(tokens=[]), "UnsupportedTokenizer", "no tokenizer"),
        (byte_level(tokens=[1, 2]), "UnsupportedTokenizer", "no tokenizer"),
        (byte_level(model="t5"), "UnsupportedTokenizer", "'t5'"),
        (byte_level("unheard-of"), "UnsupportedTokenizer", "'unheard-of'"),
        (byte_level(token_type=[1]), "BadHeader", "token types"),
        (byte_level(merges=["no such"]), "BadHeader", "cannot be built"),
        (byte_level(merges=["lonely"]), "BadHeader", "cannot be built"),
        (sentence_piece(scores=[1.0]), "BadHeader", "scores"),
    ],
)
def test_refusals_name_what_is_not_known(metadata: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(StartupError) as caught:
        build(metadata)
    assert caught.value.code == code
    assert word in caught.value.message
    assert "x.gguf" in caught.value.message


def test_transformers_reads_the_result(tmp_path: Path) -> None:
    import msgspec

    metadata = byte_level(add_bos_token=True) | {"tokenizer.chat_template": "{{ messages[0]['content'] }}<|im_end|>"}
    for name, content in make_tokenizer("x.gguf", metadata).items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = build(metadata)
    for text in TEXTS:
        assert theirs(text).input_ids == ours.encode(text).ids
        assert theirs.decode(theirs(text).input_ids, skip_special_tokens=True) == text
    assert theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<|im_end|>"
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 2)
