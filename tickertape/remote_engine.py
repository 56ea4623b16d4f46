"""An engine whose work happens in a worker: the front's side of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from tickertape.core.errors import EngineDead, TickertapeError, Unavailable
from tickertape.core.memory import MemoryPlan
from tickertape.core.messages import Abort, Emit, Ready, Submit, ToWorker
from tickertape.core.ports import EngineStats
from tickertape.core.request import Request, TokenDelta
from tickertape.journal import Journal

__all__ = ["RemoteEngine", "WorkerLink"]

_NOT_STARTED = Unavailable("The model is loading", code="loading", retry_after_s=1.0)
_DRAINING = Unavailable("The server is shutting down", code="draining", retry_after_s=1.0)
_MAX_DEATHS = 2
_NO_PLAN = MemoryPlan(0, 0, 0, ())


class WorkerLink(Protocol):
    """The part of an AsyncLink that is needed here."""

    def send(self, *messages: ToWorker) -> None: ...
    async def drain(self) -> None: ...


class RemoteEngine:
    """Implements `tickertape.core.ports.Engine` over whichever worker is attached. Belongs to one asyncio loop.

    The supervisor attaches a worker when it is ready and detaches it when it is gone. Requests that had produced
    nothing by then stay open and are submitted to the next worker, with their original arrival; the others fail, and so
    does one that was there when a second worker died: it may be what kills them.
    """

    def __init__(self) -> None:
        self._journal = Journal()
        self._link: WorkerLink | None = None
        self._epoch = -1
        self._refusal: TickertapeError | None = _NOT_STARTED
        self._draining = False
        self._plan = _NO_PLAN
        self._stats = EngineStats()
        self._idle = asyncio.Event()
        self._idle.set()

    def attach(self, link: WorkerLink, ready: Ready) -> None:
        """A worker is ready. What it may go on with is submitted to it at once."""
        self._link, self._epoch = link, ready.epoch
        self._plan, self._stats = ready.plan, ready.stats
        self._refusal = None
        waiting = sorted(self._journal, key=lambda entry: entry.request.arrival)
        if waiting:
            link.send(*(Submit(entry.request) for entry in waiting))

    def detach(self, refusal: TickertapeError) -> None:
        """The worker is gone and another will come. Until then new requests are refused."""
        self._link, self._refusal = None, refusal
        for entry in self._journal:
            entry.num_deaths += 1
            if entry.produced or entry.num_deaths >= _MAX_DEATHS:
                entry.fail(EngineDead("The engine stopped while it answered"))

    def give_up(self, error: TickertapeError) -> None:
        """No worker will come. Every open request fails, and every new one."""
        self._link, self._refusal = None, error
        for entry in self._journal:
            entry.fail(error)

    def receive(self, emit: Emit) -> None:
        """What a step of the worker brought. An emit of another epoch is dropped."""
        if emit.epoch != self._epoch:
            return
        self._stats = emit.stats
        for request_id, delta in emit.deltas:
            if entry := self._journal.get(request_id):
                entry.put(delta)
        for request_id, failure in emit.failures:
            if entry := self._journal.get(request_id):
                entry.fail(failure.error())

    def plan(self) -> MemoryPlan:
        return self._plan

    async def start(self) -> None:
        """Nothing to do: the supervisor attaches a worker."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """See the port. A reader that falls behind gets what it missed as one delta."""
        if self._draining:
            raise _DRAINING
        if self._refusal is not None or self._link is None:
            raise self._refusal or _NOT_STARTED
        entry = self._journal.open(request)
        self._idle.clear()
        finished = False
        try:
            self._link.send(Submit(request))
            await self._link.drain()
            while not finished:
                try:
                    delta = await entry.take()
                except TickertapeError:
                    finished = True
                    raise
                finished = delta.finish is not None
                yield delta
        finally:
            self._journal.close(request.id)
            if not finished and self._link is not None:
                self._link.send(Abort((request.id,)))
            if not self._journal:
                self._idle.set()

    def owes(self) -> bool:
        """Whether the worker has requests that it has not answered whole."""
        return self._journal.owed()

    def stats(self) -> EngineStats:
        return self._stats

    async def health(self) -> None:
        if self._draining:
            raise _DRAINING
        if self._refusal is not None:
            raise self._refusal

    async def stop(self, grace_s: float) -> None:
        """Refuses new requests, waits up to `grace_s` for the open ones, fails the rest. The worker itself is the
        supervisor's to stop."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self.give_up(_DRAINING)
