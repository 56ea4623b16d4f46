"""The rules of a lease: who may take it, for how long its holder may act, when it is over.

As Kubernetes elects leaders (client-go's leaderelection), with one difference: a holder counts from before it asked for
the renewal, not from the answer. So no clock is compared with another one:

- an observer takes over when the record has not changed for a whole lease on its own clock, counted from when it
  first saw it, which is after it was written;
- a holder acts until `renew_deadline_s` after it *sent* the last renewal that succeeded, which is before it was
  written. That is the shorter time by far, so clocks may run at speeds a third apart.

A clock here is CLOCK_BOOTTIME: it goes on while a process is stopped and while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

__all__ = ["Clock", "LeaseRecord", "Term", "Terms", "Watch", "boot_clock"]

Clock = Callable[[], float]

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # elsewhere monotonic is the best there is


def boot_clock() -> float:
    return time.clock_gettime(_BOOTTIME)


class Terms(Struct, frozen=True):
    """`lease_s` after its last sign of life a holder is replaced, `renew_deadline_s` after it the holder itself stops;
    it renews every `retry_s`, and who waits looks as often."""

    lease_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.lease_s:
            raise ValueError("a lease outlasts the renew deadline, which outlasts a retry")

    @property
    def request_timeout_s(self) -> float:
        """So that a renewal is tried three times before the deadline."""
        return self.renew_deadline_s / 3


class LeaseRecord(Struct, frozen=True, omit_defaults=True):
    """`epoch` grows with every holder. Times are the holder's wall clock, for people: they are compared for equality
    and nothing else. No holder: free."""

    holder: str = ""
    epoch: int = 0
    duration_s: float = 0.0
    acquired_us: int = 0
    renewed_us: int = 0

    def claimed(self, holder: str, duration_s: float, wall_us: int) -> LeaseRecord:
        now = max(wall_us, self.renewed_us + 1)
        return LeaseRecord(holder, self.epoch + 1, duration_s, now, now)

    def renewed(self, wall_us: int) -> LeaseRecord:
        """Always a change, whatever the wall clock does."""
        return msgspec.structs.replace(self, renewed_us=max(wall_us, self.renewed_us + 1))

    def freed(self) -> LeaseRecord:
        return msgspec.structs.replace(self, holder="")


class Watch:
    """What one observer knows of one lease. Not thread-safe."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: LeaseRecord | None = None
        self._since = 0.0

    def claimable(self, record: LeaseRecord, now: float) -> bool:
        """To be told of every record read; `now` is when its answer had come."""
        if record != self._seen:
            self._seen, self._since = record, now
        return not record.holder or self.left_s(now) <= 0

    def left_s(self, now: float) -> float:
        """Until it is claimable if it does not change, as far as is known."""
        if self._seen is None or not self._seen.holder:
            return 0.0
        # The holder's own word, where it gave one: it may have been started with other terms than ours.
        return self._since + (self._seen.duration_s or self._lease_s) - now


class Term:
    """How long a holder may act. Reading needs no lock; one thread extends."""

    def __init__(self, renew_deadline_s: float, sent_at: float) -> None:
        self._renew_deadline_s = renew_deadline_s
        self.end = sent_at + renew_deadline_s

    def extend(self, sent_at: float) -> None:
        """A renewal sent at `sent_at` succeeded. One that was sent too late changes nothing: what is over is over."""
        if sent_at < self.end:
            self.end = sent_at + self._renew_deadline_s
