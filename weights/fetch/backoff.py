"""How long to wait before trying again."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Backoff", "after"]

_JITTER = 0.1


class Backoff:
    """Decorrelated jitter, as in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): each wait is uniform
    between the shortest and three times the one before, and never longer than `longest_s`. `rng` gives numbers in
    [0, 1)."""

    def __init__(self, rng: Callable[[], float], shortest_s: float = 0.25, longest_s: float = 30.0) -> None:
        self._rng = rng
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._last_s = shortest_s

    def next_s(self) -> float:
        spread_s = self._last_s * 3 - self._shortest_s
        self._last_s = min(self._longest_s, self._shortest_s + self._rng() * spread_s)
        return self._last_s

    def reset(self) -> None:
        """It worked."""
        self._last_s = self._shortest_s


def after(retry_after_s: float, rng: Callable[[], float]) -> float:
    """What a Retry-After means for one of many: not sooner, and up to a tenth later, so that not all come at once."""
    return max(0.0, retry_after_s) * (1 + _JITTER * rng())
