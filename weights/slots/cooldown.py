"""The throttle record as a cluster shares it: read now and then, written when an origin complains."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Final

from tickertape.weights.slots.lease import Clock
from tickertape.weights.slots.register import Register, RegisterFault
from tickertape.weights.slots.throttle import ThrottleRecord, ThrottleWatch

__all__ = ["Cooldown"]

_MAX_TRIES: Final = 8  # against others who write at the same moment


class Cooldown:
    """Thread-safe: the lock is never held over a request. What is known is never older than `fresh_s` if somebody
    calls `refresh` or `left_s` as often."""

    def __init__(
        self, register: Register[ThrottleRecord], watch: ThrottleWatch, clock: Clock, *, fresh_s: float
    ) -> None:
        self._register, self._watch, self._clock, self._fresh_s = register, watch, clock, fresh_s
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._untold_until = -math.inf  # a pause that could not be written

    @property
    def num_slots(self) -> int:
        """How many there are for now."""
        return self._watch.num_slots

    @property
    def is_throttled(self) -> bool:
        """An origin said 429 within the last clean minute, as far as is known."""
        with self._lock:
            return self._watch.is_throttled(self._clock())

    def left_s(self) -> float:
        """Until anybody may ask an origin. As well as is known: a register that does not answer changes nothing."""
        with suppress(RegisterFault):
            self.refresh(self._fresh_s)
        return self.known_s()

    def known_s(self) -> float:
        """The same, from memory."""
        with self._lock:
            return self._watch.pause_s(self._clock())

    def refresh(self, max_age_s: float = 0.0) -> None:
        """Reads the record, unless it was read within `max_age_s`, and writes what is due. Raises RegisterFault."""
        with self._lock:
            now = self._clock()
            if now - self._read_at < max_age_s:
                return
            self._read_at = now  # at once: other threads need not ask the same
            untold_until = self._untold_until
        if untold_until > now:
            self._tell(untold_until)
            return
        version = self._read()
        with self._lock:
            due = self._watch.due(self._clock())
        if due is not None:
            self._write(due, version)

    def struck(self, retry_after_s: float | None) -> None:
        """An origin said 429. Our own pause begins at once; the others' when they read of it. When that cannot be
        written, `refresh` tries again."""
        with self._lock:
            now = self._clock()
            wanted_s = self._watch.wanted_s(retry_after_s, now)
            self._watch.pause(wanted_s, now)
            until = now + wanted_s
            self._untold_until = max(self._untold_until, until)
        with suppress(RegisterFault):
            self._tell(until)

    def _tell(self, until: float) -> None:
        for _ in range(_MAX_TRIES):
            version = self._read()
            with self._lock:
                now = self._clock()
                record = self._watch.struck(until - now, now) if until > now else None
            if record is None or self._write(record, version):
                with self._lock:
                    if self._untold_until <= until:
                        self._untold_until = -math.inf
                return

    def _read(self) -> str:
        record, version = self._register.read()
        with self._lock:
            self._watch.observe(record, self._clock())
        return version

    def _write(self, record: ThrottleRecord, version: str) -> bool:
        if self._register.compare_and_swap(record, version) is None:
            return False
        with self._lock:
            self._watch.wrote(record, self._clock())
        return True
