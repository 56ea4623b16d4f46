"""The thread that turns the engine's crank: takes requests from an inbox, steps, hands out what came of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Final

from tickertape.core.loop import EngineLoop
from tickertape.core.ports import EngineStats
from tickertape.core.request import Request
from tickertape.core.step import StepEvents

__all__ = ["Driver", "Sink"]

_OVERDUE_S: Final = 1.0
_SILENCE_S: Final = 1.0

Sink = Callable[[StepEvents, EngineStats], None]


class Driver:
    """Owns the loop's thread. `submit`, `abort` and `stop` may be called from any thread.

    `sink` is called on the driver's thread once per step that has something to tell, once when the engine falls idle,
    so that the last statistics say so, and in between at least every second that brings a step: a long prefill has
    nothing to tell, but whoever watches must see that it moves.
    """

    def __init__(self, loop: EngineLoop, sink: Sink, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._sink = sink
        self._clock = clock
        self._told_at = clock()
        self._inbox: deque[Request | int] = deque()
        self._changed = Condition()
        self._stopping = False
        loop.on_compiled(self._wake)

    def submit(self, request: Request) -> None:
        self._put(request)

    def abort(self, request_id: int) -> None:
        self._put(request_id)

    def stop(self) -> None:
        """`run` returns after the step it is in; what is not finished stays unfinished."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Steps until `stop`. Raises what killed the engine."""
        loop, inbox = self._loop, self._inbox
        idle = True
        while not self._stopping:
            while inbox:
                item = inbox.popleft()
                if isinstance(item, Request):
                    loop.submit(item)
                else:
                    loop.abort(item)
                idle = False
            if loop.has_work():
                idle = False
                events = loop.step()
                if events or self._clock() - self._told_at >= _SILENCE_S:
                    self._tell(events)
                continue
            if not idle:
                idle = True
                self._tell(StepEvents())
            with self._changed:
                # Nothing tells of a compilation that takes too long; its time is looked at.
                timeout_s = _OVERDUE_S if loop.num_compiling else None
                self._changed.wait_for(lambda: bool(inbox) or self._stopping or loop.has_work(), timeout_s)

    def _tell(self, events: StepEvents) -> None:
        self._told_at = self._clock()
        self._sink(events, self._loop.stats())

    def _put(self, item: Request | int) -> None:
        self._inbox.append(item)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()
