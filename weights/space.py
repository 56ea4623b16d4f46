"""Room for what will be written: free space on the file system, and a size that the store stays under."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from tickertape.core.errors import StartupError
from tickertape.weights.gc import Collector, evictable, garbage
from tickertape.weights.store import Store
from tickertape.weights.usage import survey

__all__ = ["Budget", "Room", "free_bytes", "human"]


class Budget(Struct, frozen=True, kw_only=True):
    """How much of a disk the store may have. `reserve_bytes` stay free on the file system whatever happens. From
    `high_bytes` on the store is brought down to `low_bytes` (nine tenths of it when not told); None: no bound."""

    reserve_bytes: int = 1 << 30
    high_bytes: int | None = None
    low_bytes: int | None = None

    @property
    def goal_bytes(self) -> int | None:
        if self.high_bytes is None:
            return None
        return self.high_bytes * 9 // 10 if self.low_bytes is None else self.low_bytes


class Room:
    """Makes room in one store. Not thread-safe. `free` says how many bytes of the file system are to be had."""

    def __init__(
        self,
        store: Store,
        budget: Budget,
        collector: Collector | None = None,
        free: Callable[[Path], int] | None = None,
    ) -> None:
        self._store = store
        self._budget = budget
        self._collector = collector or Collector(store)
        self._free = free or free_bytes

    def make_room(self, num_bytes: int) -> None:
        """Returns when `num_bytes` can be written without touching the reserve, having removed what had to go: what
        nobody needs first, then the least recently used. The bound on the store's size is kept as well as what is in
        use allows, and is no reason to fail.

        Call it before anything is allocated, and not inside `Holds.window`. Raises StartupError, code NoSpace, with
        the sum; asking again makes sense, since what is in use may be let go.
        """
        self._stay_under(num_bytes)
        short = self._short(num_bytes)
        if short <= 0:
            return
        problem = ""
        try:
            self._collector.collect(lambda _: self._short(num_bytes) <= 0)
        except StartupError as error:
            if error.code not in ("NotCollectable", "ReadOnlyStore"):
                raise
            problem = f"; {error.message}"
        if self._short(num_bytes) > 0:
            raise self._refusal(num_bytes, problem)

    def tend(self) -> None:
        """Keeps the store under its bound. Call it now and then, and after something was published."""
        self._stay_under(0)

    def _stay_under(self, coming_bytes: int) -> None:
        high, goal = self._budget.high_bytes, self._budget.goal_bytes
        if high is None or goal is None:
            return
        size_bytes = survey(self._store).size_bytes
        if size_bytes + coming_bytes <= high:
            return
        excess = size_bytes + coming_bytes - goal
        try:
            self._collector.collect(lambda freed: freed >= excess)
        except StartupError as error:
            if error.code not in ("NotCollectable", "ReadOnlyStore"):
                raise

    def _short(self, num_bytes: int) -> int:
        return num_bytes + self._budget.reserve_bytes - self._free(self._store.root)

    def _refusal(self, num_bytes: int, problem: str) -> StartupError:
        usage = survey(self._store)
        evictable_bytes = sum(victim.size_bytes for victim in (*garbage(usage), *evictable(usage)))
        return StartupError(
            f"no space in the weights store: {human(num_bytes)} are needed and {human(self._budget.reserve_bytes)} kept"
            f" in reserve, {human(self._free(self._store.root))} are free and {human(evictable_bytes)} could be"
            f" removed{problem}",
            code="NoSpace",
        )


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the file system of `path`, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def human(num_bytes: float) -> str:
    """Bytes for people, in binary units: 0 B, 1023 B, 1.0 KiB, 3.2 GiB."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        num_bytes /= 1024
        if abs(num_bytes) < 1023.95 or unit == "TiB":
            break
    return f"{num_bytes:.1f} {unit}"
