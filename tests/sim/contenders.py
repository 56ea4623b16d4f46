"""Servers that contend for slots in simulated time, the origin that they read from, and what must always hold.

The slots are the real ones (`LeasedSlots`): only the network, the clocks and the threads are simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tests.sim.clockwork import Process, World
from tests.sim.registers import Cell, Network, Remote
from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.cooldown import Cooldown
from tickertape.weights.slots.lease import LeaseRecord, Terms
from tickertape.weights.slots.leased import LeasedSlot, LeasedSlots
from tickertape.weights.slots.throttle import Pacing, ThrottleRecord, ThrottleWatch

__all__ = ["Cluster", "Contender", "check_throttle"]

SKEW: Final = 0.05


class Rounds:
    """A keeper: a thread of the process."""

    def __init__(self, process: Process) -> None:
        self._process, self._running, self._asked = process, False, False

    def keep(self, renew: Callable[[], bool], every_s: float) -> None:
        self._asked = True
        if not self._running:
            self._running = True
            self._process.spawn(lambda: self._run(renew, every_s))

    def close(self) -> None: ...

    def _run(self, renew: Callable[[], bool], every_s: float) -> None:
        while True:
            self._process.sleep(every_s)
            self._asked = False
            if not renew() and not self._asked:
                self._running = False
                return


class Reader:
    """A thread that wants to read for ever: one request after the other, some buffers each."""

    def __init__(self, contender: Contender, cluster: Cluster) -> None:
        self.slot: LeasedSlot | None = None
        self.was_stopped = False  # while it had this slot
        self.num_late_requests = self.num_late_buffers = 0  # since then
        self._contender, self._cluster, self._process = contender, cluster, contender.process

    @property
    def holds(self) -> bool:
        """Whether its slot is in its term, as seen from outside."""
        return self.slot is not None and self._process.clock() < self.slot.term_end

    def resumed(self) -> None:
        self.was_stopped, self.num_late_requests, self.num_late_buffers = True, 0, 0

    def run(self) -> None:
        random, slots = self._cluster.world.random, self._contender.slots
        while True:
            slot = slots.acquire()
            if slot is None:
                self._process.sleep(slots.retry_s)
                continue
            self.slot, self.was_stopped, self.num_late_requests, self.num_late_buffers = slot, False, 0, 0
            self._cluster.acquired(slot)
            try:
                for _ in range(random.randrange(1, 40)):
                    if not self._read(slot) and random.random() < 0.5:
                        break
            except SlotLost:
                pass
            self.slot = None
            slot.release()
            self._process.sleep(random.uniform(0, 1))

    def _read(self, slot: LeasedSlot) -> bool:
        random, slots = self._cluster.world.random, self._contender.slots
        while (left_s := slots.cooldown_s()) > 0:
            self._process.sleep(left_s)
        decided_at = self._cluster.world.now
        slot.check()
        if random.random() < 0.1:
            self._process.sleep(0.01)  # here it may be stopped, too
        self.num_late_requests += self._late(slot)
        assert self.num_late_requests <= 1
        retry_after_s = self._cluster.request(self._contender, slot, decided_at)
        if retry_after_s is not None:
            slots.throttled(retry_after_s)
            return False
        for _ in range(random.randrange(1, 5)):
            self._process.sleep(random.uniform(0.1, 0.8))
            self.num_late_buffers += self._late(slot)
            assert self.num_late_buffers <= 1
            slot.check()
        return True

    def _late(self, slot: LeasedSlot) -> bool:
        """Whether it acts outside its term. That takes having been stopped, or having been amid something."""
        self._cluster.check_holders()
        late_s = self._process.clock() - slot.term_end
        assert late_s < 1 or self.was_stopped
        self._cluster.num_late += late_s >= 0
        return late_s >= 0


class Contender:
    """A server with a few readers. Its clock is nobody else's, and its wall clock stands still."""

    def __init__(self, cluster: Cluster, name: str, num_readers: int) -> None:
        world, terms, random = cluster.world, cluster.terms, cluster.world.random
        process = self.process = Process(
            world, name, rate=1 + cluster.skew * random.uniform(-1, 1), offset=random.uniform(0, 10**6)
        )
        network, timeout_s, wall_us = cluster.network, terms.request_timeout_s, random.randrange(10**15)
        watch = ThrottleWatch(cluster.num_slots, Pacing(), random.random)
        throttle = Remote(cluster.throttle, world, network, timeout_s, process)
        self.slots = LeasedSlots(
            [Remote(cell, world, network, timeout_s, process) for cell in cluster.cells],
            Cooldown(throttle, watch, process.clock, fresh_s=terms.retry_s),
            holder=name,
            terms=terms,
            keeper=Rounds(process),
            clock=process.clock,
            wall_us=lambda: wall_us,
            rng=random.random,
        )
        self.refused_at, self.quiet_until = 0.0, 0.0  # true times; the latter is what the origin named to it
        self.resumed_at = -math.inf
        self.readers = [Reader(self, cluster) for _ in range(num_readers)]
        for reader in self.readers:
            process.spawn(reader.run)

    @property
    def held(self) -> list[int]:
        return [reader.slot.index for reader in self.readers if reader.slot is not None and reader.holds]


class Cluster:
    """Raises AssertionError where something happens that must not. As long as the network has been well (`calm`),
    stronger things hold, whatever befalls the servers. Clocks are up to `skew` faster or slower than the true one."""

    def __init__(self, seed: int, *, num_slots: int, num_contenders: int, skew: float = SKEW) -> None:
        self.world, self.network, self.terms = World(seed), Network(), Terms()
        self.num_slots, self.skew, self.calm = num_slots, skew, True
        self.cells = [Cell(LeaseRecord()) for _ in range(num_slots)]
        self.throttle = Cell(ThrottleRecord())
        self.num_requests = self.num_refused = self.num_late = 0
        self.freed: dict[int, float] = {}  # index of a slot whose holder is gone: since when
        self.returns: list[float] = []  # seconds until such a one was held again
        self._closed_until = 0.0  # the origin answers 429 until then
        self._num_told = self._num_gone = 0  # meanwhile: 429s, and servers that may not have passed one on
        self.contenders: list[Contender] = []
        for _ in range(num_contenders):
            self.join()

    def join(self) -> None:
        name, num_readers = f"server-{len(self.contenders)}", self.world.random.choice([1, 1, 2])
        self.contenders.append(Contender(self, name, num_readers))

    def kill(self, contender: Contender) -> None:
        self._gone(contender)
        contender.process.kill()

    def stop(self, contender: Contender) -> None:
        self._gone(contender)
        contender.process.stop()

    def stop_next_writer(self) -> None:
        """Stops whoever next has something written, before he knows."""

        def stop(process: Process) -> None:
            for contender in self.contenders:
                if contender.process is process and process.alive and not process.stopped:
                    self.stop(contender)

        self.network.on_write = stop

    def resume(self, contender: Contender) -> None:
        for index in contender.held:
            self.freed.pop(index, None)
        for reader in contender.readers:
            reader.resumed()
        contender.resumed_at = self.world.now
        contender.process.resume()

    def trouble(self, *, delay_s: float = 0.02, loss: float = 0.0, down: bool = False) -> None:
        self.network.delay_s, self.network.loss, self.network.down = delay_s, loss, down
        self.calm &= self.network.well

    def refuse(self, seconds: float) -> None:
        """The origin is closed for a while, if it is not already."""
        if self.world.now >= self._closed_until:
            self._closed_until, self._num_told, self._num_gone = self.world.now + seconds, 0, 0

    def close(self) -> None:
        self.world.close()

    # What contenders do, and what must hold when they do it.

    def acquired(self, slot: LeasedSlot) -> None:
        self.check_holders()
        since = self.freed.pop(slot.index, None)
        if since is not None:
            self.returns.append(self.world.now - since)

    def request(self, contender: Contender, slot: LeasedSlot, decided_at: float) -> float | None:
        """The origin's answer: None, or when to come again. `decided_at`: what happened since did not hinder it."""
        self.num_requests += 1
        now = self.world.now
        quiet = now < contender.quiet_until and decided_at > contender.refused_at
        assert not quiet, "asked before the time that the origin named to it"
        told_at, record = self.throttle.history[-1]
        heard = min(now - told_at, now - contender.resumed_at) > self.terms.retry_s / (1 - self.skew) + 0.2
        if self.calm and heard:
            assert record.num_slots is None or slot.index < record.num_slots, "there are fewer slots by now"
            assert now - told_at >= record.pause_s * (1 - self.skew), "asked in a pause that it should have heard of"
        left_s = self._closed_until - now
        if left_s <= 0:
            return None
        self.num_refused += 1
        self._num_told += 1
        if self.calm:
            assert self._num_told <= self.num_slots + self._num_gone, "one slot was refused twice in one closing"
        contender.refused_at, contender.quiet_until = now, self._closed_until
        return left_s / (1 - self.skew)  # long enough for a clock that is fast

    def check_holders(self) -> None:
        held = [index for contender in self.contenders for index in contender.held]
        assert len(held) == len(set(held)), "a slot with two holders"

    def _gone(self, contender: Contender) -> None:
        self._num_gone += 1
        for index in contender.held:
            self.freed.setdefault(index, self.world.now)


def check_throttle(history: list[tuple[float, ThrottleRecord]], num_slots: int) -> None:
    """Halved once a cool-down, one more a clean minute, from 1 to all; a pause is over when its time has passed."""
    for (since, old), (now, new) in pairwise(history):
        before, after = (num_slots if record.num_slots is None else record.num_slots for record in (old, new))
        passed_s = (now - since) / (1 - SKEW)
        assert 1 <= after <= num_slots
        if new.epoch != old.epoch:
            assert new.epoch == old.epoch + 1
            assert new.pause_s > 0
            if after != before:
                assert after == before // 2
                assert passed_s >= old.pause_s
        elif old.pause_s:
            assert (new.pause_s, after) == (0.0, before)
            assert passed_s >= old.pause_s
        else:
            assert after in (before, before + 1)
            assert passed_s >= 60
