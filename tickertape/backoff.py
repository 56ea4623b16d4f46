"""When to start a worker again, and when to stop trying."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Doubles the delay from `first_s` to `cap_s` with each death; a life of `reset_s` starts it over. More than
    `max_deaths` within `window_s` are too many."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        first_s: float = 0.1,
        cap_s: float = 30.0,
        reset_s: float = 60.0,
        max_deaths: int = 5,
        window_s: float = 120.0,
    ) -> None:
        self._clock = clock
        self._first_s, self._cap_s, self._reset_s = first_s, cap_s, reset_s
        self._max_deaths, self._window_s = max_deaths, window_s
        self._deaths: deque[float] = deque(maxlen=max_deaths + 1)
        self._num_in_a_row = 0

    def died(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: give up. `lived_s` counts from readiness, 0 if it never was."""
        now = self._clock()
        self._deaths.append(now)
        if len(self._deaths) > self._max_deaths and now - self._deaths[0] <= self._window_s:
            return None
        if lived_s >= self._reset_s:
            self._num_in_a_row = 0
        delay = self._first_s * 2.0 ** min(self._num_in_a_row, 32)
        self._num_in_a_row += 1
        return min(delay, self._cap_s)
