"""Slots that are leases in registers, for any number of computers: at most K of them hold one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.cooldown import Cooldown
from tickertape.weights.slots.lease import Clock, LeaseRecord, Term, Terms, Watch
from tickertape.weights.slots.register import Register, RegisterDenied, RegisterFault

__all__ = ["Keeper", "LeasedSlot", "LeasedSlots"]

_MAX_TRIES: Final = 3  # to free a slot that is being renewed at the same moment

_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Has `renew` called every `every_s` from now on, until it returns False: nothing is left to keep. Asked while it
    does so already, it goes on."""

    def keep(self, renew: Callable[[], bool], every_s: float) -> None: ...

    def close(self) -> None: ...


class LeasedSlot:
    """A `Slot`. Lost for good once it is: past its term, overtaken, given back, or one more than there are for now."""

    def __init__(
        self,
        index: int,
        record: LeaseRecord,
        version: str,
        term: Term,
        *,
        clock: Clock,
        num_slots: Callable[[], int],
        free: Callable[[LeasedSlot], None],
    ) -> None:
        self.index, self.record, self.version = index, record, version  # as last written by us
        self._term, self._clock, self._num_slots, self._free = term, clock, num_slots, free
        self._why_lost: str | None = None

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def term_end(self) -> float:
        return self._term.end

    @property
    def lost(self) -> bool:
        try:
            self.check()
        except SlotLost:
            return True
        return False

    def check(self) -> None:
        if self._why_lost is None:
            if self._clock() >= self._term.end:  # asked of the clock now: we may have been stopped until now
                self._why_lost = "it was not renewed in time"
            elif self.index >= self._num_slots():
                self._why_lost = "there are fewer for a while"
        if self._why_lost is not None:
            raise SlotLost(f"the slot to read from the origin is gone: {self._why_lost}")

    def renewed(self, record: LeaseRecord, version: str, sent_at: float) -> None:
        self.record, self.version = record, version
        self._term.extend(sent_at)

    def lose(self, why: str) -> None:
        if self._why_lost is None:
            self._why_lost = why

    def release(self) -> None:
        self.lose("it was given back")
        self._free(self)


class LeasedSlots:
    """`Slots` over a register per slot. Of those there are for now, the first that is free is taken.

    When there are fewer after a 429, the holders of the last ones lose theirs at their next check: load must fall at
    once, and what they have received stays. A cool-down by itself costs nobody a slot.

    No lock is held over a request, but one thread at a time acquires; others get None meanwhile. When the registers
    fail nobody gets a slot, holders lose theirs at the deadline, and a line of the log says why, once.
    """

    def __init__(
        self,
        registers: Sequence[Register[LeaseRecord]],
        cooldown: Cooldown,
        *,
        holder: str,
        terms: Terms,
        keeper: Keeper,
        clock: Clock,
        wall_us: Callable[[], int],
        rng: Callable[[], float],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._registers, self._cooldown, self._holder, self._terms = registers, cooldown, holder, terms
        self._keeper, self._clock, self._wall_us, self._rng, self._on_close = keeper, clock, wall_us, rng, on_close
        self._watches = [Watch(terms.lease_s) for _ in registers]
        self._acquiring = threading.Lock()
        self._lock = threading.Lock()
        self._held: dict[int, LeasedSlot] = {}
        self._trouble: str | None = None
        self._said: set[str] = set()

    @property
    def trouble(self) -> str | None:
        """The last fault, where it was one of all registers and not of a few; None since then."""
        return self._trouble

    @property
    def retry_s(self) -> float:
        """Somewhat less than the terms' retry, by chance, so that a renewal is seen within that whatever a request
        takes; and no more than what a lease that is not renewed has left."""
        pause_s = self._terms.retry_s * (0.5 + 0.4 * self._rng())
        with self._lock:
            now = self._clock()
            lefts = [watch.left_s(now) for index, watch in enumerate(self._watches) if index not in self._held]
        return min([pause_s, *(left for left in lefts if left > 0)])

    def acquire(self) -> LeasedSlot | None:
        if not self._acquiring.acquire(blocking=False):
            return None
        try:
            return self._acquire()
        except RegisterFault as fault:
            self._complain(fault)
            return None
        finally:
            self._acquiring.release()

    @property
    def is_throttled(self) -> bool:
        return self._cooldown.is_throttled

    def cooldown_s(self) -> float:
        return self._cooldown.left_s()

    def throttled(self, retry_after_s: float | None) -> None:
        self._cooldown.struck(retry_after_s)

    def close(self) -> None:
        self._keeper.close()
        for slot in list(self._held.values()):
            slot.release()
        self._on_close()

    def renew(self) -> bool:
        """One round for what is held, the most urgent first; whether anything is. For the keeper. What is lost is left
        to its owner, who may be busy with a last buffer: he closes his connections, then releases it."""
        try:
            for slot in self._holding():
                self._renew(slot)
            self._cooldown.refresh()
            self._trouble = None
        except RegisterFault as fault:
            self._complain(fault)
        return bool(self._holding())

    def _acquire(self) -> LeasedSlot | None:
        self._cooldown.refresh(self._terms.retry_s)
        if self._cooldown.known_s() > 0:
            return None
        denied, num_slots = [], min(len(self._registers), self._cooldown.num_slots)
        for index in range(num_slots):
            try:
                slot = self._claim(index)
            except RegisterDenied as fault:
                denied.append(fault)
                continue
            if slot is not None:
                return self._begin(slot)
        if len(denied) == num_slots:
            raise denied[0]
        if denied:
            self._say(denied[0])
        self._trouble = None
        return None

    def _claim(self, index: int) -> LeasedSlot | None:
        held = self._held.get(index)
        if held is not None and not held.lost:
            return None
        record, version = self._registers[index].read()
        with self._lock:
            sent_at = self._clock()
            claimable = self._watches[index].claimable(record, sent_at)
            # One with our name that we do not hold was claimed by a request whose answer was lost: it is nobody's.
            claimable |= record.holder == self._holder
        if not claimable:
            return None
        record = record.claimed(self._holder, self._terms.lease_s, self._wall_us())
        written = self._registers[index].compare_and_swap(record, version)
        if written is None:
            return None
        return LeasedSlot(
            index,
            record,
            written,
            Term(self._terms.renew_deadline_s, sent_at),
            clock=self._clock,
            num_slots=lambda: self._cooldown.num_slots,
            free=self._free,
        )

    def _begin(self, slot: LeasedSlot) -> LeasedSlot | None:
        """Whoever had the slot before may have written of a cool-down before he gave it back: look after claiming."""
        with self._lock:
            self._held[slot.index] = slot
        self._keeper.keep(self.renew, self._terms.retry_s)
        try:
            self._cooldown.refresh()
        except RegisterFault:
            slot.release()
            raise
        if self._cooldown.known_s() > 0 or slot.lost:
            slot.release()
            return None
        self._trouble = None
        return slot

    def _holding(self) -> list[LeasedSlot]:
        with self._lock:
            slots = list(self._held.values())
        return sorted((slot for slot in slots if not slot.lost), key=lambda slot: slot.term_end)

    def _renew(self, slot: LeasedSlot) -> None:
        register = self._registers[slot.index]
        sent_at, record = self._clock(), slot.record.renewed(self._wall_us())
        version = register.compare_and_swap(record, slot.version)
        if version is None:  # overtaken; or a renewal whose answer was lost did count
            found, at = register.read()
            if (found.holder, found.epoch) != (self._holder, slot.epoch):
                slot.lose("somebody else has it")
                return
            sent_at, record = self._clock(), found.renewed(self._wall_us())
            version = register.compare_and_swap(record, at)
        if version is not None:
            slot.renewed(record, version, sent_at)

    def _free(self, slot: LeasedSlot) -> None:
        """Tells the others, if it is still ours to tell; else they find out."""
        with self._lock:
            if self._held.get(slot.index) is not slot:
                return
            del self._held[slot.index]
        register = self._registers[slot.index]
        record, version = slot.record, slot.version
        try:
            for _ in range(_MAX_TRIES):
                if register.compare_and_swap(record.freed(), version) is not None:
                    return
                record, version = register.read()
                if (record.holder, record.epoch) != (self._holder, slot.epoch):
                    return
        except RegisterFault as fault:
            self._complain(fault)

    def _complain(self, fault: RegisterFault) -> None:
        self._trouble = str(fault)
        self._say(fault)

    def _say(self, fault: RegisterFault) -> None:
        if str(fault) not in self._said:
            self._said.add(str(fault))
            _log.warning("no slot to read from origins: %s", fault)
