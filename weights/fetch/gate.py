"""Whether an origin may be asked now: the slot, the pause after a fault or a 429, and how many requests at once."""

from __future__ import annotations

from collections.abc import Callable

from tickertape.core.errors import OriginBusy
from tickertape.weights.fetch.backoff import Backoff, after
from tickertape.weights.fetch.clock import Clock
from tickertape.weights.fetch.ports import Slot, Slots

__all__ = ["OriginGate"]


class OriginGate:
    """Not thread-safe, except for what asks `slots`: the fetch calls it under its own lock.

    The first request goes alone, and each that gets an answer lets one more go beside it, up to `most`; one at a time
    for a minute after a 429, so that an origin that has to say it again says it once, not once for each connection.
    """

    def __init__(self, slots: Slots, most: int, clock: Clock, rng: Callable[[], float]) -> None:
        self.slot: Slot | None = None
        self.num_active = 0
        self._slots = slots
        self._most = most
        self._clock = clock
        self._rng = rng
        self._allowed = 1
        self._closed_until = clock.now()
        self._cooling_until = self._closed_until
        self._backoff = Backoff(rng)

    @property
    def is_open(self) -> bool:
        return self.slot is not None and self.num_active < self._allowed and self._clock.now() >= self._closed_until

    @property
    def cooling_s(self) -> float:
        """Until an origin may be asked again after a 429, ours or another server's."""
        return max(0.0, self._cooling_until - self._clock.now())

    @property
    def closed_s(self) -> float:
        return max(0.0, self._closed_until - self._clock.now())

    def pause(self, seconds: float) -> None:
        """The cluster cools down."""
        self._cooling_until = max(self._cooling_until, self._clock.now() + seconds)
        self._closed_until = max(self._closed_until, self._cooling_until)

    def answered(self) -> None:
        """A request got its first bytes."""
        most = 1 if self._slots.is_throttled else self._most
        self._allowed = min(most, self._allowed + 1)
        self._backoff.reset()

    def busy(self, error: OriginBusy) -> None:
        """The origin said 429."""
        self._allowed = 1
        wait_s = error.retry_after_s
        self.pause(after(wait_s, self._rng) if wait_s is not None else self._backoff.next_s())

    def failed(self) -> None:
        self._allowed = max(1, self._allowed // 2)
        self._closed_until = max(self._closed_until, self._clock.now() + self._backoff.next_s())

    def lose(self) -> None:
        """The slot is not ours any more."""
        slot, self.slot = self.slot, None
        self._allowed = 1
        if slot is not None:
            slot.release()
