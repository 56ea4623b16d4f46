"""Two tiny tokenizers, built on the spot, for tests of whatever turns tokens into text.

Byte-level: ids 0..255 are the bytes themselves, so `list("any text".encode())` is a valid output to script; a few
merged tokens and three special ones follow. No BOS.

SentencePiece type: `▁` for spaces, one leading space added and taken away again, `<0xNN>` byte fallback for what has no
piece (newlines too), BOS added by the tokenizer. Laid out as the tokenizer.json of a Llama.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tickertape.testing import templates

__all__ = [
    "BYTE_LEVEL_SPECIAL",
    "BYTE_LEVEL_TOKENS",
    "SENTENCEPIECE_PIECES",
    "byte_level_tokenizer",
    "sentencepiece_tokenizer",
    "write_byte_level",
    "write_sentencepiece",
]

BYTE_LEVEL_TOKENS: tuple[bytes, ...] = (
    b"  ",
    b"\n  ",
    b" the",
    b" world",
    b" cat",
    b"Hello",
    b"ABC ",
    b"DEF",
    b"HI",
    b" KLM",
    b"foo.bar",
    b'{"',
    b'": ',
    "é".encode(),
    "你".encode()[:2],  # the last byte of every such character comes alone
    "好".encode(),
    "😀".encode()[:2],
    "😀".encode()[2:],
    "👍".encode(),
    b" " + "你".encode()[:1],  # a space and the first third of a character
    "\u200d".encode(),
)
"""Every merged token that matters to a test; what leads up to them is in the vocabulary too."""

BYTE_LEVEL_SPECIAL: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

SENTENCEPIECE_PIECES: tuple[str, ...] = (
    "▁▁",
    "▁the",
    "▁cat",
    "▁sat",
    "▁on",
    "▁mat",
    "▁world",
    "▁Hello",
    "Hello",
    "ABC",
    "DEF",
    "HI",
    "▁KLM",
    "foo.bar",
    '{"',
    "é",
    "好",
)


def _alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it prints, else 256 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def _merge(pieces: Sequence[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    merged = list(pieces)
    while pairs := [pair for pair in itertools.pairwise(merged) if pair in ranks]:
        best = min(pairs, key=ranks.__getitem__)
        at = next(n for n in range(len(merged) - 1) if (merged[n], merged[n + 1]) == best)
        merged[at : at + 2] = ["".join(best)]
    return merged


def _grow(vocabulary: list[str], words: Iterable[str]) -> list[tuple[str, str]]:
    """Appends to `vocabulary` what is needed for each word to become one token; answers the merges, in order."""
    ranks: dict[tuple[str, str], int] = {}
    for word in words:
        pieces = _merge(list(word), ranks)
        while len(pieces) > 1:
            ranks.setdefault((pieces[0], pieces[1]), len(ranks))
            pieces[:2] = [pieces[0] + pieces[1]]
            if pieces[0] not in vocabulary:
                vocabulary.append(pieces[0])
    return list(ranks)


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE without BOS: ids 0..255 are bytes, the special tokens come last."""
    alphabet = _alphabet()
    vocabulary = list(alphabet)
    merges = _grow(vocabulary, ["".join(alphabet[byte] for byte in token) for token in BYTE_LEVEL_TOKENS])
    tokenizer = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(vocabulary)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in BYTE_LEVEL_SPECIAL])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """SentencePiece-type BPE: 0 `<unk>`, 1 `<s>` (added in front of every text), 2 `</s>`, 3..258 the bytes."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += ["▁", *(chr(code) for code in range(0x21, 0x7F)), "é", "好"]
    merges = _grow(vocabulary, SENTENCEPIECE_PIECES)
    model = models.BPE(
        vocab={token: n for n, token in enumerate(vocabulary)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def write_byte_level(
    directory: Path, *, chat_template: str | None = templates.CHATML, special: Sequence[str] = ()
) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json. Ends of text: `<|im_end|>` and
    `<|endoftext|>`; `special` are further special tokens. No config.json: that is the model's."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    _write_json(directory / "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    _write_json(directory / "generation_config.json", {"eos_token_id": ends})


def write_sentencepiece(directory: Path, *, chat_template: str | None = templates.WRITES_BOS) -> None:
    """As `write_byte_level`; BOS is `<s>`, the end of text `</s>`."""
    directory.mkdir(parents=True, exist_ok=True)
    sentencepiece_tokenizer().save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    _write_json(directory / "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    _write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
