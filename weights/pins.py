"""Models that are never collected, however long nobody uses them: one small file each, `pins/<key>.json`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tickertape.weights.files import write_atomically

__all__ = ["Pin", "Pins"]

_FOLDER: Final = "pins"


class Pin(Struct, frozen=True):
    """What was pinned, for people, and when (Unix time). Another revision of the same URI is another model."""

    uri: str
    revision: str
    pinned_at: float


class Pins:
    """The pins of a store. `key` is that of a `Model` (see usage.py). Writing raises OSError."""

    def __init__(self, root: Path) -> None:
        self._folder = root / _FOLDER

    def keys(self) -> frozenset[str]:
        """Also of a pin whose file cannot be read: in doubt nothing is collected."""
        return frozenset(path.stem for path in self._folder.glob("*.json"))

    def get(self, key: str) -> Pin | None:
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=Pin)
        except (OSError, msgspec.DecodeError):
            return None

    def add(self, key: str, uri: str, revision: str) -> None:
        if not self._path(key).exists():
            write_atomically(self._path(key), msgspec.json.encode(Pin(uri, revision, time.time())))

    def remove(self, key: str) -> bool:
        """Whether it was there."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
