"""Text to ids and back, and what a model's files say about both."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.errors import InvalidRequest, StartupError
from tickertape.testing.tokenizers import (
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    write_byte_level,
    write_sentencepiece,
)

BYTE_LEVEL = TextTokenizer(byte_level_tokenizer())
SENTENCEPIECE = TextTokenizer(sentencepiece_tokenizer())


def change(file: Path, **entries: object) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**content, **entries}), encoding="utf-8")


def test_byte_level_from_a_directory(tmp_path: Path) -> None:
    write_byte_level(tmp_path)
    tokenizer = TextTokenizer.from_directory(tmp_path)
    end, start, text_end = (
        tokenizer.encode(f"<|{name}|>", add_special_tokens=False)[0] for name in ("im_end", "im_start", "endoftext")
    )
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == (end, text_end)
    assert tokenizer.special_ids == {start, end, text_end}
    assert tokenizer.vocab_size == max(start, end, text_end) + 1
    assert tokenizer.encode("Hello", add_special_tokens=True) == tokenizer.encode("Hello", add_special_tokens=False)


def test_sentencepiece_from_a_directory(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    tokenizer = TextTokenizer.from_directory(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("the", add_special_tokens=True) == [1, *tokenizer.encode("the", add_special_tokens=False)]


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config": {"eos_token_id": [7, 8]}, "config": {"eos_token_id": 9}}, (7, 8)),
        ({"generation_config": {"eos_token_id": None}, "config": {"eos_token_id": 9}}, (9,)),
        ({"config": {"eos_token_id": [9, 3]}}, (9, 3)),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, (2,)),
        ({"special_tokens_map": {"eos_token": "</s>"}, "tokenizer_config": {"eos_token": None}}, ()),
        ({"special_tokens_map": {"eos_token": {"content": "</s>"}}}, (2,)),
        ({}, ()),
    ],
)
def test_the_end_ids_come_from_the_first_file_that_has_any(
    tmp_path: Path, files: dict[str, dict[str, Any]], ids: tuple[int, ...]
) -> None:
    sentencepiece_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name, entries in files.items():
        change(tmp_path / f"{name}.json", **entries)
    assert TextTokenizer.from_directory(tmp_path).eos_token_ids == ids


def test_the_models_config_does_not_make_a_bos(tmp_path: Path) -> None:
    write_byte_level(tmp_path)
    change(tmp_path / "config.json", bos_token_id=5)
    assert TextTokenizer.from_directory(tmp_path).bos_token_id is None


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), "MissingTokenizer", "tokenizer.json"),
        (lambda d: (d / "tokenizer.json").write_text('{"model":\n'), "BadTokenizer", "tokenizer.json"),
        (lambda d: (d / "tokenizer_config.json").write_text('{\n"a": ]'), "BadTokenizer", "config.json, line 2"),
        (lambda d: (d / "generation_config.json").write_text("[1]"), "BadTokenizer", "generation_config.json"),
        (lambda d: (d / "tokenizer_config.json").write_bytes(b"\xff"), "BadTokenizer", "tokenizer_config.json"),
        (lambda d: change(d / "generation_config.json", eos_token_id="x"), "BadTokenizer", "eos_token_id 'x'"),
        (lambda d: change(d / "generation_config.json", eos_token_id=[-1]), "BadTokenizer", "eos_token_id"),
        (lambda d: change(d / "tokenizer.json", decoder={"type": "CTC", "pad_token": "<pad>",
                          "word_delimiter_token": "|", "cleanup": True}), "BadTokenizer", "decoder CTC"),
    ],
)  # fmt: skip
def test_damage_is_one_clear_line(tmp_path: Path, damage: Callable[[Path], object], code: str, message: str) -> None:
    write_byte_level(tmp_path)
    damage(tmp_path)
    with pytest.raises(StartupError) as caught:
        TextTokenizer.from_directory(tmp_path)
    assert caught.value.code == code
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_an_order_of_decoders_that_cannot_be_streamed_is_refused() -> None:
    tokenizer = sentencepiece_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()])
    with pytest.raises(StartupError, match="ByteFallback"):
        TextTokenizer(tokenizer)


def test_nothing_is_cut_or_padded() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    assert len(TextTokenizer(tokenizer).encode("xyzxyz", add_special_tokens=False)) == 6


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE])
def test_every_text_comes_back(tokenizer: TextTokenizer) -> None:
    for text in ("", " ", "the cat", "  two", "a\n\n  b", "é你好😀", "foo.bar", '{"a": "b"}'):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True), skip_special_tokens=True) == text


def test_ids_without_a_token_have_no_text() -> None:
    padded = BYTE_LEVEL.vocab_size + 7
    assert BYTE_LEVEL.decode([97, padded, 98], skip_special_tokens=False) == "ab"
    assert BYTE_LEVEL.token_bytes(padded) == b""
    assert BYTE_LEVEL.token_text(padded) == ""


def test_a_lone_surrogate_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        BYTE_LEVEL.encode("a\ud800", add_special_tokens=False)


def test_the_bytes_of_byte_level_tokens() -> None:
    assert [BYTE_LEVEL.token_bytes(id) for id in range(256)] == [bytes([byte]) for byte in range(256)]
    for text in ("Hello", " world", "foo.bar", "<|im_end|>", "好"):
        (id,) = BYTE_LEVEL.encode(text, add_special_tokens=False)
        assert BYTE_LEVEL.token_bytes(id) == text.encode()
        assert BYTE_LEVEL.token_text(id) == text


def test_the_bytes_of_sentencepiece_tokens() -> None:
    assert [SENTENCEPIECE.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert SENTENCEPIECE.token_bytes(1) == b"<s>"
    tokens = {SENTENCEPIECE.token_bytes(id) for id in range(SENTENCEPIECE.vocab_size)}
    assert {b" the", b"  ", b'{"', "é".encode()} <= tokens


def test_a_part_of_a_character_is_shown_as_bytes() -> None:
    assert BYTE_LEVEL.token_text(0xE4) == r"bytes:\xe4"
    first_two = BYTE_LEVEL.encode("你", add_special_tokens=False)[0]
    assert BYTE_LEVEL.token_text(first_two) == r"bytes:\xe4\xbd"
    assert SENTENCEPIECE.token_text(3 + 0x0A) == "\n"


def test_added_tokens_stand_for_their_text() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["é x", "ñ"])
    added = TextTokenizer(tokenizer)
    assert [added.token_text(id) for id in added.encode("é xñ", add_special_tokens=False)] == ["é x", "ñ"]


@pytest.mark.parametrize(
    ("decoder", "token", "data"),
    [
        (decoders.Metaspace(), "▁the", b" the"),
        (decoders.WordPiece(prefix="▁"), "▁the", b"the"),
        (decoders.WordPiece(prefix="▁"), "Hello", b" Hello"),
    ],
)
def test_the_bytes_are_those_of_a_token_in_the_middle(decoder: decoders.Decoder, token: str, data: bytes) -> None:
    tokenizer = sentencepiece_tokenizer()
    tokenizer.decoder = decoder
    id = tokenizer.token_to_id(token)
    assert id is not None
    assert TextTokenizer(tokenizer).token_bytes(id) == data


def test_one_letter_two_hundred_thousand_times() -> None:
    """The worst text for a merge-based tokenizer: one word, every pair of it mergeable."""
    tokens = ["a" * 2**n for n in range(9)]
    merges = [(token, token) for token in tokens[:-1]]
    tokenizer = TextTokenizer(Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges)))
    began = time.thread_time()
    ids = tokenizer.encode("a" * 200_000, add_special_tokens=False)
    assert time.thread_time() - began < 2.0
    assert ids[0] == 8


def test_threads_may_share_one() -> None:
    tokenizer = TextTokenizer(byte_level_tokenizer())
    texts = [f"Hello world {n} 你好😀" for n in range(200)]

    def round_trip(text: str) -> str:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return b"".join(tokenizer.token_bytes(id) for id in ids).decode()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(round_trip, texts)) == texts


def test_no_heavy_library_is_imported() -> None:
    script = (
        "import sys, tickertape.api.detokenizer, tickertape.api.render_pool, tickertape.api.stop_strings;"
        "print([name for name in ('torch', 'transformers', 'numpy.testing') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("write", [write_byte_level, write_sentencepiece])
def test_the_same_as_transformers(tmp_path: Path, write: Callable[[Path], None]) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path)
    ours = TextTokenizer.from_directory(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_ids[0]) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in ("the cat sat", "  é你😀\n x", "<|im_end|></s>", ""):
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
