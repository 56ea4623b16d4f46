"""Reading from a stream that somebody else may end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

__all__ = ["Ended", "Reads"]

T = TypeVar("T")


class Ended(Exception):
    """`Reads.end` was called."""


class Reads:
    """Belongs to one asyncio loop."""

    def __init__(self) -> None:
        self._timers: set[asyncio.Timeout] = set()
        self._ended = False

    async def next(self, source: AsyncIterator[T]) -> T:
        """The next item. Raises StopAsyncIteration after the last; Ended once `end` was called, also while it waits."""
        if self._ended:
            raise Ended
        timer = asyncio.timeout(None)
        self._timers.add(timer)
        try:
            async with timer:
                return await anext(source)
        except TimeoutError:
            if not timer.expired():
                raise
            raise Ended from None
        finally:
            self._timers.discard(timer)

    def end(self) -> None:
        self._ended = True
        for timer in self._timers:
            timer.reschedule(asyncio.get_running_loop().time())
