"""What an origin lets pass, and what it remembers of it."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

__all__ = ["Fault", "Pace", "RequestLimit", "Served", "TrafficLog"]


class Served(Struct):
    """A request and how it went. `num_bytes` is what of the body was handed to the socket, [start, end) what was asked
    of a file. Times are of `time.monotonic`; `ended_s` None: still going on."""

    at_s: float
    client: str
    method: str
    path: str
    status: int = 0
    start: int = 0
    end: int = 0
    num_bytes: int = 0
    ended_s: float | None = None
    retry_after_s: int | None = None


class Fault(Struct, frozen=True):
    """What goes wrong with one answer: a `status` in its place (with Retry-After); or after so many bytes of the body
    the connection is cut, or silent for ever, or one byte is wrong; or the range is not honoured."""

    status: int | None = None
    retry_after_s: float | None = None
    cut_after: int | None = None
    stall_after: int | None = None
    wrong_at: int | None = None
    ignores_range: bool = False


class Pace:
    """Bytes a second of everybody together, first come first served; None: no bound. Thread-safe."""

    def __init__(self, bytes_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()
        self.bytes_s = bytes_s

    def reserve(self, num_bytes: int) -> float:
        """Seconds to wait before these bytes may go."""
        if self.bytes_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            at = max(now, self._free_at)
            self._free_at = at + num_bytes / self.bytes_s
            return at - now


class RequestLimit:
    """So many requests of everybody together in each window of time; none for `shut_s` from the first one, as if others
    had used them up. Thread-safe."""

    def __init__(
        self,
        num_requests: int,
        window_s: float,
        *,
        shut_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_requests = num_requests
        self.window_s = window_s
        self._clock = clock
        self._shut_s = shut_s
        self._opens_at: float | None = None
        self._lock = threading.Lock()
        self._window = -1
        self._num_left = 0

    def admit(self) -> int | None:
        """None when it is within the limit, else the whole seconds of Retry-After."""
        with self._lock:
            now = self._clock()
            if (window := int(now // self.window_s)) != self._window:
                self._window, self._num_left = window, self._num_requests
            if self._opens_at is None:
                self._opens_at = now + self._shut_s
            if now < self._opens_at:
                self._num_left = 0
            self._num_left -= 1
            return None if self._num_left >= 0 else math.ceil((window + 1) * self.window_s - now)


class TrafficLog:
    """Thread-safe. Times are of `time.monotonic`."""

    _TICK_S: Final = 0.1

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: list[Served] = []
        self._ticks: Counter[int] = Counter()

    def begin(self, request: Served) -> None:
        with self._lock:
            self._served.append(request)

    def sent(self, request: Served, num_bytes: int) -> None:
        with self._lock:
            request.num_bytes += num_bytes
            self._ticks[int(time.monotonic() / self._TICK_S)] += num_bytes

    @property
    def requests(self) -> Sequence[Served]:
        """In the order they came; those still going on change."""
        with self._lock:
            return tuple(self._served)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return self._ticks.total()

    def bytes_over_time(self) -> list[tuple[float, int]]:
        """(time, bytes sent until then), one for each tick in which some were."""
        with self._lock:
            ticks = sorted(self._ticks.items())
        total, series = 0, []
        for tick, num_bytes in ticks:
            total += num_bytes
            series.append(((tick + 1) * self._TICK_S, total))
        return series
