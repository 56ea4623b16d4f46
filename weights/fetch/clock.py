"""The one clock of a fetch, and the two ways in which it waits."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Seconds from some fixed moment. Thread-safe."""

    def now(self) -> float: ...

    def wait(self, condition: threading.Condition, timeout_s: float, *, idle: bool) -> None:
        """Until the condition, which the caller holds, is notified, or so many seconds have passed. `idle` says that
        nothing is going on which might notify it: a clock that is not bound to the real one may then skip ahead."""
        ...

    def sleep_until(self, moment: float, stop: threading.Event) -> None:
        """Or until `stop` is set."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout_s: float, *, idle: bool) -> None:
        condition.wait(timeout_s)

    def sleep_until(self, moment: float, stop: threading.Event) -> None:
        if (left_s := moment - self.now()) > 0:
            stop.wait(left_s)
