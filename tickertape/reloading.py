"""Reads files again when they have changed, or when it is told to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["Reloader"]

_POLL_S: Final = 1.0

_log = logging.getLogger(__name__)

Signature = tuple[tuple[int, ...] | None, ...]


class _Watched:
    def __init__(self, what: str, paths: Sequence[Path], load: Callable[[], Awaitable[None]]) -> None:
        self.what = what
        self.load = load
        self._paths = tuple(paths)
        self.seen = self.signature()

    def signature(self) -> Signature:
        """Changes with the content, also when a link is pointed elsewhere, as Kubernetes does it."""
        return tuple(_signature(path) for path in self._paths)


class Reloader:
    """Looks at its files every second; `look` makes it read all of them at once. What cannot be used is logged, and
    what was read before stays in force."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._asked = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._watched)

    def watch(self, what: str, paths: Sequence[Path], load: Callable[[], Awaitable[None]]) -> None:
        """`load` reads `paths` and puts what it found in force; or raises, with a message for the
        operator, and changes nothing. The files are taken to have been read already."""
        self._watched.append(_Watched(what, paths, load))

    def look(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _POLL_S)
            asked = self._asked.is_set()
            self._asked.clear()
            for watched in self._watched:
                await self._check(watched, asked)

    async def _check(self, watched: _Watched, asked: bool) -> None:
        # Taken first: what changes while it is read will be read again.
        signature = watched.signature()
        if signature == watched.seen and not asked:
            return
        watched.seen = signature
        try:
            await watched.load()
        except Exception as error:
            _log.error("%s not read again, what was read before stays in force: %s", watched.what, error)
        else:
            _log.info("%s read again", watched.what)


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
