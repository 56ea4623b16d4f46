"""Notices a client that takes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

__all__ = ["StallGuard"]


class StallGuard:
    """Closes `answers`, and so ends what they cost, when a write lasts `timeout_s` or up to a quarter longer: it looks
    now and then, since a timer for each message would cost more than the message."""

    def __init__(self, answers: AsyncGenerator[Any, None], timeout_s: float) -> None:
        self._answers = answers
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._begun: float | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(timeout_s / 4, self._look)

    def begin(self) -> None:
        """A message is to be written; `answers` stand still until it is."""
        self._begun = self._loop.time()

    def end(self) -> None:
        self._begun = None

    @property
    def stalled(self) -> bool:
        return self._closing is not None

    async def close(self) -> None:
        self._timer.cancel()
        if self._closing is not None:
            await self._closing

    def _look(self) -> None:
        if self._begun is not None and self._loop.time() - self._begun >= self._timeout_s:
            self._closing = self._loop.create_task(self._answers.aclose())
        else:
            self._timer = self._loop.call_later(self._timeout_s / 4, self._look)
