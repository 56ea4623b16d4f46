"""Processes that read under slots, what is done to them, and what their notes tell of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from tickertape.weights.slots.lease import Terms, boot_clock

__all__ = ["TERMS", "Event", "Holder", "Holders"]

TERMS: Final = Terms(lease_s=1.0, renew_deadline_s=0.7, retry_s=0.15)
_PATIENCE_S: Final = 60.0

T = TypeVar("T")


class Event(Struct, frozen=True):
    what: str  # acquired, read, lost
    at: float
    index: int
    epoch: int


class Holder:
    """One process. `num_resumed`: how often it was stopped and continued."""

    def __init__(self, where: str, num_slots: int, log: Path, env: Mapping[str, str]) -> None:
        self.num_resumed = 0
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sim.slot_holder", where, str(num_slots)], stdout=out, env=env
            )

    def events(self) -> list[Event]:
        lines = self._log.read_bytes().split(b"\n")[:-1]  # the last one may be under way
        return [msgspec.json.decode(line, type=Event) for line in lines]

    @property
    def holding(self) -> Event | None:
        """What it reads under, as far as it has noted."""
        events = self.events()
        return events[-1] if events and events[-1].what == "read" else None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.num_resumed += 1
        self._process.send_signal(signal.SIGCONT)


class Holders:
    """Some processes that contend for the same slots; `log_directory` takes their notes."""

    def __init__(self, where: str, num_slots: int, log_directory: Path, env: Mapping[str, str]) -> None:
        self.all: list[Holder] = []
        self._where, self._num_slots, self._directory, self._env = where, num_slots, log_directory, env

    @contextmanager
    def running(self, number: int) -> Iterator[None]:
        try:
            for _ in range(number):
                self.start()
            yield
        finally:
            for holder in self.all:
                holder.kill()

    def start(self) -> None:
        log = self._directory / f"holder-{len(self.all)}.log"
        self.all.append(Holder(self._where, self._num_slots, log, self._env))

    def wait_for_a_holder(self, chance: random.Random | None = None) -> tuple[Holder, Event]:
        """One that reads, and what it read last."""

        def look() -> tuple[Holder, Event] | None:
            found = [(holder, event) for holder in self.all if (event := holder.holding) is not None]
            fresh = [(holder, event) for holder, event in found if boot_clock() - event.at < TERMS.retry_s]
            return (chance or random.Random(0)).choice(fresh) if fresh else None

        return _until(look)

    def wait_for_the_next(self, index: int, epoch: int) -> Event:
        """The first to take a slot after an epoch of it."""

        def look() -> Event | None:
            taken = [e for e in self.events("acquired") if e.index == index and e.epoch > epoch]
            return min(taken, key=lambda event: event.at) if taken else None

        return _until(look)

    def wait_for_loss(self, holder: Holder, epoch: int) -> None:
        _until(lambda: [e for e in holder.events() if e.what == "lost" and e.epoch == epoch] or None)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        _until(lambda: holds() or None)

    def events(self, what: str) -> list[Event]:
        return [event for holder in self.all for event in holder.events() if event.what == what]

    def num_late(self, holder: Holder) -> int:
        """Reads under a slot that somebody else had read under already."""
        reads = [(event.at, event.index, event.epoch, other) for other in self.all for event in other.events()
                 if event.what == "read"]  # fmt: skip
        newest: dict[int, int] = {}
        num_late = 0
        for _, index, epoch, other in sorted(reads, key=lambda read: read[0]):
            if epoch < newest.get(index, 0):
                num_late += other is holder
            else:
                newest[index] = epoch
        return num_late


def _until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + _PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return found
