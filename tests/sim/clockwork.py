"""Simulated time with processes in it: they run plain blocking code, have clocks of their own, and may be stopped,
continued and killed between any two things that they wait for. One thread, one random generator: a seed is a run.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import greenlet

__all__ = ["Process", "World"]


class Process:
    """`clock()` goes at `rate` from `offset`, also while the process is stopped."""

    def __init__(self, world: World, name: str, rate: float, offset: float) -> None:
        self.name, self.alive, self.stopped = name, True, False
        self._world, self._rate, self._offset = world, rate, offset
        self._late: list[Callable[[], None]] = []

    def clock(self) -> float:
        return self._offset + self._world.now * self._rate

    def spawn(self, work: Callable[[], None]) -> None:
        """A thread of the process."""
        self._world.at(self._world.now, self._world.thread(work).switch, self)

    def sleep(self, seconds: float) -> None:
        """By its own clock."""
        self._world.park(seconds / self._rate, self)

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        late, self._late = self._late, []
        for wake in late:
            self._world.at(self._world.now, wake, self)

    def kill(self) -> None:
        self.alive = False

    def run(self, event: Callable[[], None]) -> None:
        if self.stopped:
            self._late.append(event)
        elif self.alive:
            event()


class World:
    """What happens is a heap of events; `now` is the true time, which no process knows."""

    def __init__(self, seed: int) -> None:
        self.now, self.random = 0.0, random.Random(seed)
        self._events: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._order = itertools.count()
        self._main = greenlet.getcurrent()
        self._threads: list[Any] = []

    def thread(self, work: Callable[[], None]) -> Any:
        """What it raises is raised by `advance`."""
        thread = greenlet.greenlet(work, self._main)
        self._threads.append(thread)
        return thread

    def at(self, when: float, event: Callable[[], None], process: Process | None = None) -> None:
        heapq.heappush(self._events, (when, next(self._order), process, event))

    def park(self, seconds: float, process: Process) -> None:
        self.at(self.now + max(0.0, seconds), greenlet.getcurrent().switch, process)
        self._main.switch()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, process, event = heapq.heappop(self._events)
            if process is None:
                event()
            else:
                process.run(event)
        self.now = end

    def close(self) -> None:
        for thread in self._threads:
            if not thread.dead:
                thread.throw(greenlet.GreenletExit)
