"""Waiting in the thread that reports."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tickertape.weights.fetch.clock import Clock

__all__ = ["wait_until"]

_NAP_S = 0.5


def wait_until(moment: float, clock: Clock, tell: Callable[[], None]) -> None:
    """Calls `tell` now and then; what it raises ends the wait."""
    never = threading.Event()
    while (now := clock.now()) < moment:
        tell()
        clock.sleep_until(min(moment, now + _NAP_S), never)
