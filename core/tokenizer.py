"""The seam between text and token ids, for tokenizers that do not come as a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

__all__ = ["Tokenizer", "TokenizerSpec"]


class Tokenizer(Protocol):
    """A model's tokenizer, over bytes: every token stands for some bytes, and a text's tokens, joined, for its UTF-8.
    Used by the front, from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text; the first is the usual one."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that a client does not see in a text unless it asks to."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """The ids of a text; with `add_special_tokens`, whatever stands around one (BOS). Special tokens that are
        written out in the text become their ids. Raises InvalidRequest for a text that has none."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """What a token stands for: a part of a character as it is, a special token as its text, nothing for an id that
        is no token."""
        ...


class TokenizerSpec(Struct, frozen=True, kw_only=True):
    """A registered kind of tokenizer, asked for models that have no tokenizer.json. `supports` gets the model's
    directory and must be cheap: None when it can be read, else the reason why not, in one line. `load` raises
    StartupError. Both run in the front, `load` on a thread."""

    name: str
    supports: Callable[[Path], str | None]
    load: Callable[[Path], Tokenizer]
    summary: str = ""
