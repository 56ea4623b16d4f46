"""A limit on bytes per second that many threads share."""

from __future__ import annotations

import threading
from typing import Final

from tickertape.weights.fetch.clock import Clock

__all__ = ["TokenBucket"]

_BURST_S: Final = 0.1


class TokenBucket:
    """A token bucket that lends: what is taken beyond what there is has to be waited for afterwards, by whoever took
    it, so that no piece is too large. `rate` is in bytes per second; None: no limit. Thread-safe."""

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._most = (rate or 0.0) * _BURST_S
        self._level = self._most
        self._since = clock.now()

    def take(self, num_bytes: int) -> float:
        """The moment from which on more may be asked for; it may have passed."""
        now = self._clock.now()
        if self._rate is None:
            return now
        with self._lock:
            self._level = min(self._most, self._level + (now - self._since) * self._rate) - num_bytes
            self._since = now
            return now - min(0.0, self._level) / self._rate
