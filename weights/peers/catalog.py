"""What of the files under way may be handed on already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

__all__ = ["NoPartials", "Partial", "PartialCatalog"]


class Partial(Struct, frozen=True):
    """A file under way. `ranges` are the [start, end) that are verified, in order, apart from each other: only whole
    chunks whose own digest is known. They never change again, only grow in number. Without any, it tells the others
    that somebody is at it."""

    sha256: str
    size_bytes: int
    ranges: tuple[tuple[int, int], ...]


class PartialCatalog(Protocol):
    """The files under way on this node. Thread-safe; asked often, so it answers from memory or nearly so."""

    def partials(self) -> Collection[Partial]: ...

    def open(self, sha256: str) -> tuple[int, Partial] | None:
        """A descriptor to read the file by, which the caller closes, and what of it is verified. None when it is not
        under way (any more)."""
        ...


class NoPartials:
    """Nothing is under way, or nothing of it may be handed on."""

    def partials(self) -> Collection[Partial]:
        return ()

    def open(self, sha256: str) -> tuple[int, Partial] | None:
        return None
