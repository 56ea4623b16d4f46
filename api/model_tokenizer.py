"""What the front asks of a model's tokenizer, wherever it comes from; and the one of a plugin as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tickertape.api.decoder_stages import Piece, Utf8
from tickertape.api.decoders import Decoder
from tickertape.core.tokenizer import Tokenizer

__all__ = ["ModelTokenizer", "PluginTokenizer", "shown"]

_BYTES: Final = Decoder(prepare=str.encode, factories=(Utf8,))
"""Tokens are bytes; nothing but an unfinished character is carried from one to the next."""


class ModelTokenizer(Protocol):
    """See `TextTokenizer`, which is the usual one."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def added_texts(self) -> frozenset[str]: ...
    @property
    def decoder(self) -> Decoder: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def piece(self, id: int) -> Piece | None: ...
    def token_bytes(self, id: int) -> bytes: ...
    def token_text(self, id: int) -> str: ...


class PluginTokenizer:
    """A plugin's tokenizer, with what follows from its tokens being bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.bos_token_id = tokenizer.bos_token_id
        self.eos_token_ids = tuple(tokenizer.eos_token_ids)
        self.special_ids = frozenset(tokenizer.special_ids)
        self.added_texts = frozenset(self.token_text(token) for token in self.special_ids)
        self.decoder = _BYTES

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return b"".join(self.token_bytes(id) for id in ids if id not in skipped).decode(errors="replace")

    def piece(self, id: int) -> Piece | None:
        return self.token_bytes(id) or None

    def token_bytes(self, id: int) -> bytes:
        return self._tokenizer.token_bytes(id)

    def token_text(self, id: int) -> str:
        return shown(self.token_bytes(id))


def shown(data: bytes) -> str:
    r"""A token as `logprobs` entries show it: its text or, for a part of a character, `bytes:\xe4\xbd`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
