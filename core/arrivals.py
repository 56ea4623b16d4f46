"""From a request that was submitted to one in the scheduler's queue, or to a refusal."""

from __future__ import annotations

from typing import Final

from tickertape.core.compiling import Compiling
from tickertape.core.errors import InvalidRequest, TickertapeError
from tickertape.core.grammar import Constraint
from tickertape.core.request import Finish, Request, TokenDelta
from tickertape.core.scheduler import Scheduler
from tickertape.core.step import StepEvents

__all__ = ["Arrivals"]

_DONE: Final = TokenDelta((), finish=Finish("stop"))


class Arrivals:
    """Requests with a grammar wait here until it is compiled, in nobody's way; then they take the place in the queue
    that their arrival gives them. Owned by the loop's thread. `compiling` None: grammars are refused."""

    def __init__(self, scheduler: Scheduler, compiling: Compiling | None) -> None:
        self._scheduler = scheduler
        self.compiling = compiling
        self._events = StepEvents()

    @property
    def num_compiling(self) -> int:
        return 0 if self.compiling is None else len(self.compiling)

    def has_news(self) -> bool:
        """Whether a request can be queued or something is to be told."""
        return bool(self._events) or (self.compiling is not None and self.compiling.due())

    def submit(self, request: Request) -> None:
        """Never raises for a request that cannot be served: that is among the events."""
        if request.grammar is None:
            self._add(request, None)
        elif self.compiling is None:
            self._refuse(
                request,
                InvalidRequest("this model cannot follow a grammar", code="unsupported_value", param="grammar"),
            )
        else:
            self.compiling.begin(request, request.grammar)

    def abort(self, request_id: int) -> None:
        if self.compiling is not None:
            self.compiling.drop(request_id)
        if self._events:
            self._events.failures = [told for told in self._events.failures if told[0] != request_id]
            self._events.deltas = [told for told in self._events.deltas if told[0] != request_id]

    def settle(self) -> None:
        """Queues the requests whose grammars are compiled."""
        if self.compiling is None or not len(self.compiling):
            return
        for request, outcome in self.compiling.take():
            if isinstance(outcome, TickertapeError):
                self._refuse(request, outcome)
            elif outcome.is_done:  # what it replays is the whole text, or there is but the empty one
                self._events.deltas.append((request.id, _DONE))
            else:
                self._add(request, outcome)

    def take_events(self) -> StepEvents:
        """What is to be told since the last call."""
        events, self._events = self._events, StepEvents()
        return events

    def close(self) -> None:
        if self.compiling is not None:
            self.compiling.close()

    def _add(self, request: Request, constraint: Constraint | None) -> None:
        try:
            self._scheduler.add(request, constraint)
        except TickertapeError as error:
            self._refuse(request, error)

    def _refuse(self, request: Request, error: TickertapeError) -> None:
        self._events.failures.append((request.id, error))
