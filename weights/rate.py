"""A limit on bytes a second, shared by whoever takes from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["TokenBucket"]

_BURST_S: Final = 0.1
_LEAST_BYTES: Final = 4 << 10


class TokenBucket:
    """Hands out `mbps` megabits a second, and at most a tenth of a second's worth at once after a pause. Thread-safe.

    Never blocks: who takes is told how long to wait before using what it took, and waits as it likes. What was taken
    is owed, so takers are served in the order they came. None: no limit.
    """

    def __init__(self, mbps: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = mbps * 1e6 / 8 if mbps is not None else None
        self._clock = clock
        self._free_at = clock() - _BURST_S
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> float:
        """Seconds to wait before these bytes may go."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + num_bytes / self._bytes_per_s
            return max(0.0, self._free_at - now)

    def give_back(self, num_bytes: int) -> None:
        """Of what was taken, what was not used."""
        if self._bytes_per_s is not None:
            with self._lock:
                self._free_at -= num_bytes / self._bytes_per_s

    def portion(self, at_most: int) -> int:
        """How much to take at a time, so that no taker's turn is longer than the burst."""
        if self._bytes_per_s is None:
            return at_most
        return min(at_most, max(_LEAST_BYTES, int(self._bytes_per_s * _BURST_S / 2)))
