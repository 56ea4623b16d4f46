"""What is known of one peer: what it holds, how fast it is, and whether to leave it alone for now."""

from __future__ import annotations

import threading
from typing import Final

from tickertape.weights.peers.connection import Address
from tickertape.weights.peers.wire import Inventory

__all__ = ["Peer"]

_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 60.0
_LATEST_WEIGHS: Final = 0.3


class Peer:
    """Thread-safe. Times are the caller's, on one monotonic clock."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.store = ""  # which it serves from; "" until it said so
        self.listing_etag = ""
        self.num_active = 0
        self.bytes_per_s = 0.0  # 0.0: not known
        self._sizes: dict[str, int] = {}
        self._ranges: dict[str, tuple[tuple[int, int], ...]] = {}
        self._distrusted: set[str] = set()
        self._busy_until: dict[str, float] = {}  # by object; "": all of them
        self._rests_until = 0.0
        self._num_failures = 0
        self._is_banned = False
        self._lock = threading.Lock()

    @property
    def num_held(self) -> int:
        return len(self._sizes)

    def holds_whole(self, sha256: str) -> bool:
        return not self._is_banned and sha256 not in self._distrusted and sha256 in self._sizes

    def holds_part(self, sha256: str) -> bool:
        return not self._is_banned and sha256 not in self._distrusted and sha256 in self._ranges

    def ranges(self, sha256: str) -> tuple[tuple[int, int], ...]:
        """What it has of an object that it has not whole."""
        return self._ranges.get(sha256, ())

    def held_until(self, sha256: str, position: int, size_bytes: int | None) -> int:
        """The end of what it holds from `position` on; `position` itself when that is nothing, or of another size."""
        with self._lock:
            if self._is_banned or sha256 in self._distrusted:
                return position
            if (size := self._sizes.get(sha256)) is not None:
                return size if size_bytes in (None, size) else position
            for start, end in self._ranges.get(sha256, ()):
                if start <= position < end:
                    return end
            return position

    def free_at(self, sha256: str) -> float:
        """When it may be asked for an object; in the past when now."""
        with self._lock:
            return max(self._rests_until, self._busy_until.get("", 0.0), self._busy_until.get(sha256, 0.0))

    def is_resting(self, now: float) -> bool:
        return self._is_banned or self._rests_until > now

    def begin(self) -> None:
        """A request of ours to it runs."""
        with self._lock:
            self.num_active += 1

    def end(self) -> None:
        with self._lock:
            self.num_active -= 1

    def told(self, inventory: Inventory, listing_etag: str) -> None:
        with self._lock:
            self.store, self.listing_etag = inventory.store, listing_etag
            self._sizes = dict(inventory.whole)
            self._ranges = {partial.sha256: partial.ranges for partial in inventory.partial}

    def answered(self) -> None:
        with self._lock:
            self._num_failures = 0

    def gave(self, num_bytes: int, seconds: float) -> None:
        with self._lock:
            self._num_failures = 0
            speed = num_bytes / max(seconds, 1e-6)
            known = self.bytes_per_s or speed
            self.bytes_per_s = known + _LATEST_WEIGHS * (speed - known)

    def lacks(self, sha256: str) -> None:
        """It said so, whatever it had told before."""
        with self._lock:
            self._sizes.pop(sha256, None)
            self._ranges.pop(sha256, None)
            self.listing_etag = ""

    def refused(self, sha256: str, until: float) -> None:
        """It is busy with one object; "" stands for all."""
        with self._lock:
            self._busy_until = {key: time for key, time in self._busy_until.items() if time > until - _LONGEST_REST_S}
            self._busy_until[sha256] = until

    def failed(self, now: float) -> None:
        """It is left alone for a while, twice as long each time in a row."""
        with self._lock:
            self._rests_until = now + min(_LONGEST_REST_S, _FIRST_REST_S * 2.0**self._num_failures)
            self._num_failures += 1

    def rest(self, until: float) -> None:
        with self._lock:
            self._rests_until = until

    def distrust(self, sha256: str, *, alone: bool) -> None:
        """It sent bytes of an object that turned out wrong. It is not asked for that object again; if nobody else sent
        any, or it is not the first time, it is asked for nothing any more."""
        with self._lock:
            self._is_banned = self._is_banned or alone or bool(self._distrusted - {sha256})
            self._distrusted.add(sha256)
