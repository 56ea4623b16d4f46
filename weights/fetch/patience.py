"""How long a fetch goes on without a byte."""

from __future__ import annotations

from typing import Final

from tickertape.core.errors import StartupError
from tickertape.weights.fetch.clock import Clock

__all__ = ["Patience"]

_LONGEST_STEP_S: Final = 10.0


class Patience:
    """Counts the time in which nothing came and somebody was to blame. A process that was stopped, or slept with its
    machine, does not find its patience gone when it wakes."""

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._last = clock.now()
        self._spent_s = 0.0

    @property
    def left_s(self) -> float:
        return max(0.0, self._limit_s - self._spent_s)

    def tick(self, *, gained: bool) -> None:
        """To be called often. `gained`: something came since the last time, or nobody is to blame that it did not."""
        now = self._clock.now()
        self._spent_s = 0.0 if gained else self._spent_s + min(now - self._last, _LONGEST_STEP_S)
        self._last = now

    def check(self, trouble: StartupError | None) -> None:
        """Raises StartupError when there is none left, with the last trouble as its reason."""
        if self._spent_s < self._limit_s:
            return
        waited = f"no byte of the model in {self._limit_s:g} s"
        if trouble is None:
            raise StartupError(waited, code="FetchFailed")
        raise StartupError(f"{waited}: {trouble.message}", code=trouble.code) from trouble
