"""The rules of the cool-down that a cluster shares, and of how many slots it has: AIMD.

An origin's 429 writes how long to pause. Everybody pauses that long, and up to a tenth more, from when he first saw it;
he whose pause is over writes so, and who comes later does not pause at all. Nothing depends on what time anybody has.
Who comes in between pauses too long, by less than the pause.

The number of slots halves with a cool-down, however many 429s it had, and grows by one a minute without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["Pacing", "ThrottleRecord", "ThrottleWatch"]

_JITTER: Final = 0.1


class ThrottleRecord(Struct, frozen=True, omit_defaults=True):
    """`epoch` grows with every pause written. `pause_s`: how long it is from then; 0.0: it is over. `num_slots`: None
    for all there are. `streak`: cool-downs since the last clean minute."""

    epoch: int = 0
    pause_s: float = 0.0
    num_slots: int | None = None
    streak: int = 0


class Pacing(Struct, frozen=True):
    """`first_pause_s` when the origin names no time, doubled with each cool-down in a row. No pause is longer than
    `max_pause_s`, not even one that an origin asks for: it is the whole cluster that waits, for all origins."""

    first_pause_s: float = 10.0
    max_unnamed_s: float = 300.0
    max_pause_s: float = 3600.0
    clean_s: float = 60.0

    def pause_s(self, retry_after_s: float | None, streak: int) -> float:
        if retry_after_s is not None and math.isfinite(retry_after_s) and retry_after_s > 0:
            return min(retry_after_s, self.max_pause_s)
        return min(self.first_pause_s * 2.0 ** min(streak, 32), self.max_unnamed_s)


class ThrottleWatch:
    """What one observer makes of the record, on its own clock; `rng` gives numbers in [0, 1). Not thread-safe. Every
    `now` is when the answer had come, so that a pause is never counted from before it was known."""

    def __init__(self, max_slots: int, pacing: Pacing, rng: Callable[[], float]) -> None:
        self._max_slots, self._pacing, self._rng = max_slots, pacing, rng
        self._record = ThrottleRecord()
        self._since = -math.inf  # when the record was first seen as it is
        self._shared_end = -math.inf  # of the pause in the record
        self._own_end = -math.inf  # of that, and of those that only we know of

    @property
    def num_slots(self) -> int:
        wanted = self._record.num_slots
        return self._max_slots if wanted is None else max(1, min(wanted, self._max_slots))

    def pause_s(self, now: float) -> float:
        return max(0.0, self._own_end - now)

    def is_throttled(self, now: float) -> bool:
        """Whether a clean minute has not passed since the last pause that we know of."""
        return self._record.streak > 0 or now < self._own_end + self._pacing.clean_s

    def observe(self, record: ThrottleRecord, now: float) -> None:
        if record == self._record:
            return
        if record.epoch != self._record.epoch and record.pause_s > 0:
            self._shared_end = self.pause(record.pause_s, now)
        self._record, self._since = record, now

    def pause(self, seconds: float, now: float) -> float:
        """Pauses from now on, and never shorter than before. Returns the end of this pause."""
        end = now + min(seconds, self._pacing.max_pause_s) * (1 + _JITTER * self._rng())
        self._own_end = max(self._own_end, end)
        return end

    def wanted_s(self, retry_after_s: float | None, now: float) -> float:
        """How long an origin's 429 means."""
        streak = self._record.streak
        return self._pacing.pause_s(retry_after_s, max(0, streak - 1) if self._paused(now) else streak)

    def struck(self, pause_s: float, now: float) -> ThrottleRecord | None:
        """The record that tells the others of a 429; None: they pause for as long already."""
        old = self._record
        if not self._paused(now):
            return ThrottleRecord(old.epoch + 1, pause_s, max(1, self.num_slots // 2), old.streak + 1)
        longer = now + pause_s > self._shared_end
        return replace(old, epoch=old.epoch + 1, pause_s=pause_s) if longer else None

    def wrote(self, record: ThrottleRecord, now: float) -> None:
        """It was ours: whoever wrote of a pause had begun his own before."""
        if record.epoch != self._record.epoch:
            self._shared_end = now + record.pause_s
        self._record, self._since = record, now

    def due(self, now: float) -> ThrottleRecord | None:
        """What should be written now, by whoever is first: that the pause is over, or that there is a slot more."""
        old = self._record
        if old.pause_s > 0:
            return None if self._paused(now) else replace(old, pause_s=0.0)
        if (old.num_slots is None and not old.streak) or now - self._since < self._pacing.clean_s:
            return None
        more = self.num_slots + 1
        return ThrottleRecord(old.epoch, 0.0, more if more < self._max_slots else None)

    def _paused(self, now: float) -> bool:
        return self._record.pause_s > 0 and now < self._shared_end
