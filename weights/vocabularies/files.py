"""The small files beside a vocabulary: which tokens are special, which were added, what encloses a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken

from tickertape.core.errors import StartupError

__all__ = ["INPUTS", "TokenizerFiles", "refused"]

INPUTS: Final = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""What is read here: a part of the recipe of every conversion."""


class TokenizerFiles:
    """Raises StartupError (BadTokenizer) naming the file that cannot be read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.has_config = (directory / "tokenizer_config.json").is_file()
        self.model_type = str(_read(directory, "config.json").get("model_type"))
        self._config = _read(directory, "tokenizer_config.json")
        self._named = {**_read(directory, "special_tokens_map.json"), **self._config}
        self._added = _read(directory, "added_tokens.json")

    @property
    def tokenizer_class(self) -> str | None:
        """Slow or fast makes no difference."""
        name = self._config.get("tokenizer_class")
        return name.removesuffix("Fast") if isinstance(name, str) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self._config.get(name)
        return value if isinstance(value, bool) else default

    def named(self, name: str, default: str | None = None) -> AddedToken | None:
        """The token that the files give a role ("bos_token"), also None where they say null."""
        return _token(self._named[name], special=True) if name in self._named else _token(default, special=True)

    def special(self) -> list[AddedToken]:
        """Every token with a role, and the further ones that are special."""
        found = [_token(self._named[name], special=True) for name in sorted(self._named) if name.endswith("_token")]
        for name in ("additional_special_tokens", "extra_special_tokens"):
            more = self._named.get(name)
            found += [_token(each, special=True) for each in (more if isinstance(more, list) else ())]
        return [token for token in found if token is not None]

    def added(self) -> dict[int, AddedToken]:
        """The tokens beyond the vocabulary, or marked within it, by id."""
        decoder = self._config.get("added_tokens_decoder")
        if isinstance(decoder, Mapping):
            entries = ((key, _token(entry, special=False)) for key, entry in decoder.items())
            return {int(key): token for key, token in entries if token is not None}
        return {int(key): AddedToken(text, normalized=False) for text, key in self._added.items()}


def refused(what: str) -> StartupError:
    return StartupError(f"{what} cannot be converted to a tokenizer.json", code="UnsupportedTokenizer")


def _token(entry: Any, *, special: bool) -> AddedToken | None:
    if isinstance(entry, str):
        return AddedToken(entry, special=special, normalized=not special)
    if isinstance(entry, Mapping) and isinstance(text := entry.get("content"), str):
        flags = {name: bool(entry.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
        is_special = special or bool(entry.get("special", False))
        return AddedToken(text, special=is_special, normalized=bool(entry.get("normalized", not is_special)), **flags)
    return None


def _read(directory: Path, name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode((directory / name).read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise StartupError(f"{name}: {error}", code="BadTokenizer") from error
