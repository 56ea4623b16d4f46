"""vocab.json with merges.txt, as GPT-2 and Qwen 2 have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tickertape.core.errors import StartupError
from tickertape.weights.vocabularies.files import TokenizerFiles, refused
from tickertape.weights.vocabularies.finish import add_tokens, enclose

__all__ = ["QWEN_WORDS", "byte_words", "from_merges"]

QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END_OF_TEXT: Final = "<|endoftext|>"
_LIKE_GPT2: Final = frozenset({"GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer"})
_BY_MODEL_TYPE: Final = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "gpt_neox", "codegen", "opt"), "GPT2Tokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
}


def from_merges(directory: Path, files: TokenizerFiles) -> Tokenizer:
    """Raises StartupError: UnsupportedTokenizer naming the class, BadTokenizer."""
    kind = files.tokenizer_class or _BY_MODEL_TYPE.get(files.model_type)
    prefixed = files.flag("add_prefix_space", False)
    model = models.BPE(_vocabulary(directory / "vocab.json"), _merges(directory / "merges.txt"))
    tokenizer = Tokenizer(model)
    if kind in _LIKE_GPT2:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    elif kind == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = byte_words(QWEN_WORDS, add_prefix_space=prefixed)
    else:
        raise refused(f"vocab.json and merges.txt of {kind or files.model_type}")
    tokenizer.decoder = decoders.ByteLevel()
    known = tokenizer.token_to_id(_END_OF_TEXT) is not None
    add_tokens(tokenizer, files, [AddedToken(_END_OF_TEXT, special=True, normalized=False)] if known else [])
    default = _END_OF_TEXT if known and kind in _LIKE_GPT2 else None
    enclose(
        tokenizer,
        files.named("bos_token", default) if files.flag("add_bos_token", False) else None,
        files.named("eos_token", default) if files.flag("add_eos_token", False) else None,
    )
    return tokenizer


def byte_words(pattern: str, *, add_prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
    """Words by a pattern, then their bytes."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)]
    )


def _vocabulary(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"{path.name}: {error}", code="BadTokenizer") from error


def _merges(path: Path) -> list[tuple[str, str]]:
    """One pair a line; the first line may be a comment, and looks like a pair of "#version:" and a number."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a merge may hold odd line ends
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path.name}: {error}", code="BadTokenizer") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if (number == 1 and line.startswith("#version:")) or not line.strip():
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise StartupError(f"{path.name}, line {number}: not a pair", code="BadTokenizer")
        pairs.append((left, right))
    return pairs
