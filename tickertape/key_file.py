"""The API keys that the operator named, in a file or not."""

from __future__ import annotations

from pathlib import Path

from tickertape.core.errors import StartupError
from tickertape.settings import Settings

__all__ = ["read_key_file", "read_keys"]


def read_keys(settings: Settings) -> tuple[str, ...]:
    """None: everybody is let in. Raises StartupError, code BadKeyFile."""
    if settings.api_key is not None:
        return tuple(key.strip() for key in settings.api_key.get_secret_value().split(","))
    return () if settings.api_keys is None else read_key_file(settings.api_keys)


def read_key_file(path: Path) -> tuple[str, ...]:
    """The keys in it, one a line; empty lines and those that begin with # do not count. Raises StartupError, code
    BadKeyFile, when it cannot be read or holds none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise StartupError(f"the file of API keys {path} cannot be read: {reason}", code="BadKeyFile") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        # An empty file must not mean that everybody may come in.
        raise StartupError(f"the file of API keys {path} holds none", code="BadKeyFile")
    return keys
