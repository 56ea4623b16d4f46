"""Vocabularies as the library wants them: a model's own, and one of bytes to check grammars with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper

from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.tokenizer import configured_ends, read_tokenizer
from tickertape.core.errors import StartupError
from tickertape.core.tokenizer import TokenizerSpec

__all__ = ["model_vocabulary", "sketch_vocabulary"]


def model_vocabulary(directory: Path, vocab_size: int, plugins: Mapping[str, TokenizerSpec]) -> LLTokenizer:
    """The vocabulary of a model directory, padded to `vocab_size`. Takes about 10 us a token, with Python's lock held.
    Raises StartupError when there is no tokenizer to read."""
    if ends := [token for token in configured_ends(directory) if token < vocab_size]:
        with suppress(OSError, ValueError):
            text = (directory / "tokenizer.json").read_text(encoding="utf-8")
            return LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
    # No end token, more tokens than the model has, or a kind of tokenizer that the library cannot read: we can.
    tokenizer = read_tokenizer(directory, plugins)
    tokens = [tokenizer.token_bytes(token) for token in range(max(vocab_size, tokenizer.vocab_size))]
    return _wrapped(tokens, sorted(tokenizer.special_ids), list(tokenizer.eos_token_ids))


def sketch_vocabulary(tokenizer: ModelTokenizer, vocab_size: int) -> LLTokenizer:
    """A vocabulary of the model's size in which only single bytes and the special tokens stand for something. Costs
    next to nothing, and whatever is wrong with a grammar over it is wrong over the model's vocabulary too."""
    special = tokenizer.special_ids
    tokens = [b""] * max(vocab_size, tokenizer.vocab_size, 256 + len(special))
    for token in special:
        tokens[token] = tokenizer.token_bytes(token)
    free = (token for token in range(len(tokens)) if token not in special)
    for byte, token in enumerate(free):
        if byte == 256:
            break
        tokens[token] = bytes([byte])
    return _wrapped(tokens, sorted(special), list(tokenizer.eos_token_ids))


class _Tokens:
    """What the library asks of a tokenizer that is not its own."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], end: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = end
        self._ids = {token: id for id, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        return [self._ids[bytes([byte])] for byte in data if bytes([byte]) in self._ids]


def _wrapped(tokens: list[bytes], special: Sequence[int], ends: list[int]) -> LLTokenizer:
    if not ends:
        ends = [len(tokens)]  # the library wants one; nobody can sample this
        tokens = [*tokens, b"<end>"]
    try:
        return LLTokenizer(TokenizerWrapper(_Tokens(tokens, special, ends[0])), eos_token=ends)
    except ValueError as error:
        raise StartupError(f"the tokenizer cannot carry grammars: {error}", code="BadTokenizer") from error
