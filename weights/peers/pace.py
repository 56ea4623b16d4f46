"""How long a block takes, and from when on it is worth asking another peer for it as well."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from typing import Final

__all__ = ["Pace"]

_FIRST_PATIENCE_S: Final = 1.0
_LEAST_PATIENCE_S: Final = 0.25
_NUM_KEPT: Final = 64
_NUM_NEEDED: Final = 8
_SHARE: Final = 0.1


class Pace:
    """Thread-safe. Hedged requests after Dean and Barroso, The Tail at Scale (2013): late means twice the median, and
    only a share of all requests may be hedged, so that a slow network gets no second load."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_NUM_KEPT)
        self._allowance = 1.0
        self._lock = threading.Lock()

    def took(self, seconds: float) -> None:
        """For a block of full size."""
        with self._lock:
            self._seconds.append(seconds)

    def patience_s(self) -> float:
        with self._lock:
            if len(self._seconds) < _NUM_NEEDED:
                return _FIRST_PATIENCE_S
            return max(_LEAST_PATIENCE_S, 2 * statistics.median(self._seconds))

    def asked(self) -> None:
        """A request that is no hedge was made."""
        with self._lock:
            self._allowance = min(4.0, self._allowance + _SHARE)

    def may_hedge(self) -> bool:
        """Whether one more is within the share; if so it is counted."""
        with self._lock:
            if self._allowance < 1.0:
                return False
            self._allowance -= 1.0
            return True
