"""SIGTERM and SIGINT as the front means them: the first asks to drain, the second ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

__all__ = ["StopSignals"]


class StopSignals:
    """Listens from its creation on the running loop of the main thread. `at_once` is what there is to do before the
    process ends without ceremony."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self._at_once = at_once
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)

    async def wait(self) -> None:
        """Until the first signal."""
        await self._asked.wait()

    def _receive(self, number: int) -> None:
        if self._asked.is_set():
            self._at_once()
            os._exit(128 + number)
        self._asked.set()
