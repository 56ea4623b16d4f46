"""What fetching has cost so far."""

from __future__ import annotations

import threading
from collections import Counter

from tickertape.core.messages import WarmupCounts

__all__ = ["Ledger"]


class Ledger:
    """Counts, from any thread. One per fetcher process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._slot_wait_s = 0.0

    def received(self, source: str, num_bytes: int) -> None:
        """`source` is origin, peer or derived."""
        with self._lock:
            self._num_bytes[source] += num_bytes

    def count(self, what: str, number: int = 1) -> None:
        """`what` is a field of WarmupCounts that starts with num_."""
        with self._lock:
            self._counts[what] += number

    def waited(self, seconds: float) -> None:
        """For a slot."""
        with self._lock:
            self._slot_wait_s += seconds

    def counts(self) -> WarmupCounts:
        with self._lock:
            return WarmupCounts(num_bytes=dict(self._num_bytes), slot_wait_s=self._slot_wait_s, **self._counts)
