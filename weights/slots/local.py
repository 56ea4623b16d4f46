"""No cluster to agree with: everybody may read, a little apart, and a cool-down is shared by the node."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.cooldown import Cooldown
from tickertape.weights.slots.lease import Clock

__all__ = ["LocalSlot", "LocalSlots"]


class LocalSlot:
    """A `Slot` that lasts until it is given back."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._released = False

    @property
    def epoch(self) -> int:
        return self._epoch

    def check(self) -> None:
        if self._released:
            raise SlotLost("the slot to read from the origin is gone: it was given back")

    def release(self) -> None:
        self._released = True


class LocalSlots:
    """`Slots` as many as one wants, but none before a start jitter of up to `jitter_s` has passed: servers that one
    event starts do not ask in the same moment. How fast each reads is capped where it reads."""

    def __init__(
        self,
        cooldown: Cooldown,
        *,
        clock: Clock,
        rng: Callable[[], float],
        jitter_s: float = 0.25,
        retry_s: float = 2.0,
    ) -> None:
        self._cooldown, self._clock, self._retry_s = cooldown, clock, retry_s
        self._start_at = clock() + jitter_s * rng()
        self._epochs = itertools.count(1)

    @property
    def retry_s(self) -> float:
        left_s = self._start_at - self._clock()
        return left_s if left_s > 0 else self._retry_s

    @property
    def trouble(self) -> str | None:
        return None

    def acquire(self) -> LocalSlot | None:
        if self._clock() < self._start_at or self._cooldown.left_s() > 0:
            return None
        return LocalSlot(next(self._epochs))

    @property
    def is_throttled(self) -> bool:
        return self._cooldown.is_throttled

    def cooldown_s(self) -> float:
        return self._cooldown.left_s()

    def throttled(self, retry_after_s: float | None) -> None:
        self._cooldown.struck(retry_after_s)

    def close(self) -> None:
        pass
