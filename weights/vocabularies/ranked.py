"""Vocabularies of ranked byte strings: Mistral's tekken.json, and tiktoken files of models whose pattern is known."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.byte_level import QWEN_WORDS, byte_words
from tickertape.weights.vocabularies.files import TokenizerFiles, refused
from tickertape.weights.vocabularies.finish import add_tokens, enclose
from tickertape.weights.vocabularies.merges import byte_letters, merges_by_rank

__all__ = ["from_tekken", "from_tiktoken", "read_tiktoken"]

_LLAMA3_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205)))
_TEKKEN_SPECIAL: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Those of files that came before they listed theirs."""


class _TekkenConfig(Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _TekkenToken(Struct):
    rank: int
    token_bytes: str


class _TekkenSpecial(Struct):
    rank: int
    token_str: str


class _Tekken(Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def from_tekken(path: Path, files: TokenizerFiles) -> Tokenizer:
    """The special tokens come first, the bytes' ranks count from behind them. BOS is added, as Mistral's models want
    it, unless the config says otherwise. Raises StartupError (BadTokenizer)."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Tekken)
        size = found.config.default_vocab_size - found.config.default_num_special_tokens
        ranks = {base64.b64decode(token.token_bytes): token.rank for token in found.vocab if token.rank < size}
    except (OSError, msgspec.DecodeError, binascii.Error) as error:
        raise StartupError(f"{path.name}: {error}", code="BadTokenizer") from error
    count = found.config.default_num_special_tokens
    texts = [f"<SPECIAL_{n}>" for n in range(count)]
    listed = found.special_tokens or [_TekkenSpecial(n, text) for n, text in enumerate(_TEKKEN_SPECIAL)]
    for special in listed:
        if not 0 <= special.rank < count:
            raise StartupError(f"{path.name}: {special.token_str!r} has the rank {special.rank}", code="BadTokenizer")
        texts[special.rank] = special.token_str
    tokenizer = _byte_pairs(path.name, ranks, texts, first=count, pattern=found.config.pattern)
    add_tokens(tokenizer, files, [AddedToken(text, special=True, normalized=False) for text in texts])
    begin = files.named("bos_token", "<s>")
    enclose(tokenizer, begin if files.flag("add_bos_token", True) else None, None)
    return tokenizer


def from_tiktoken(name: str, ranks: Mapping[bytes, int], files: TokenizerFiles) -> Tokenizer:
    """`name` and the model's type tell the pattern, which such a file does not hold. Raises StartupError:
    UnsupportedTokenizer, BadTokenizer."""
    if name == "qwen.tiktoken":
        pattern, special = QWEN_WORDS, _QWEN_SPECIAL
    elif files.model_type == "llama" and files.added():
        pattern, special = _LLAMA3_WORDS, ()
    else:
        raise refused(f"{name}: the pattern of a tiktoken vocabulary is known for Qwen and Llama 3 only, so it")
    tokenizer = _byte_pairs(name, ranks, (), first=0, pattern=pattern)
    if name == "qwen.tiktoken":
        tokenizer.normalizer = normalizers.NFC()
    known = set(files.added())
    wanted = [text for n, text in enumerate(special, len(ranks)) if n not in known]
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in wanted])
    add_tokens(tokenizer, files)
    begin = files.named("bos_token")
    enclose(tokenizer, begin if files.flag("add_bos_token", files.model_type == "llama") else None, None)
    return tokenizer


def read_tiktoken(data: bytes) -> dict[bytes, int]:
    """Lines of a token in base64 and its rank. Raises ValueError for anything else."""
    ranks = {}
    for line in data.split(b"\n"):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError("its ranks are not 0, 1, 2, ...")
    return ranks


def _byte_pairs(
    name: str, ranks: Mapping[bytes, int], special: Sequence[str], *, first: int, pattern: str
) -> Tokenizer:
    letters = byte_letters()
    ids = {text: n for n, text in enumerate(special)}
    for token, rank in ranks.items():
        ids.setdefault(token.decode("latin-1").translate(letters), first + rank)
    if len(ids) != len(special) + len(ranks):
        raise StartupError(f"{name}: two tokens are spelled alike", code="BadTokenizer")
    tokenizer = Tokenizer(models.BPE(ids, merges_by_rank(ranks), ignore_merges=True))
    tokenizer.pre_tokenizer = byte_words(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
