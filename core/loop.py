"""The engine's loop body: schedule, forward, sample, commit. One step at a time, or the host one step ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from tickertape.core.compiling import Compiling
from tickertape.core.errors import EngineDead, InvalidRequest, RunnerError, TickertapeError
from tickertape.core.grammar import GrammarCompiler
from tickertape.core.masking import NO_MASKS, Masker, StepMasks
from tickertape.core.ports import EngineStats, ModelRunner
from tickertape.core.request import Finish, Request, TokenDelta
from tickertape.core.scheduler import Scheduler
from tickertape.core.step import Step, StepEvents

__all__ = ["EngineLoop"]


class EngineLoop:
    """A scheduler and a runner, stepped by one thread.

    With `ahead`, step n + 1 is scheduled while the runner works on step n: ids that n is still sampling stand in it
    as LAST, and its forward is launched before n's output is looked at, so the device does not wait for Python. What
    n + 1 computed for a sequence that n turned out to finish is dropped.

    A RunnerError fails the rows of its step; whatever else a runner raises passes through `step`, and the engine must
    be given up. Step times are kept for the p99 in `stats`; `on_step` is told each, in seconds, with the figures after.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        ahead: bool = False,
        on_step: Callable[[float, EngineStats], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._ahead = ahead
        self._on_step = on_step
        self._clock = clock
        self._in_flight: Step | None = None
        self._refused = StepEvents()
        self._durations_s: deque[float] = deque(maxlen=512)
        self._num_noted = 0
        self._p99_s = 0.0

    def submit(self, request: Request) -> None:
        """Never raises for a request that cannot be served: that is a failure among the next step's events."""
        try:
            self._scheduler.add(request)
        except TickertapeError as error:
            self._refused.failures.append((request.id, error))

    def abort(self, request_id: int) -> None:
        self._scheduler.abort(request_id)
        if self._refused:
            self._refused.failures = [told for told in self._refused.failures if told[0] != request_id]

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell."""
        return self._scheduler.has_work() or bool(self._refused) or self._in_flight is not None

    def step(self) -> StepEvents:
        started = self._clock()
        if self._ahead:
            self._step_ahead()
        else:
            self._step()
        duration_s = self._clock() - started
        self._note(duration_s)
        if self._on_step is not None:
            self._on_step(duration_s, self.stats())
        events = self._scheduler.take_events()
        if self._refused:
            events.failures.extend(self._refused.failures)
            self._refused = StepEvents()
        return events

    def stats(self) -> EngineStats:
        return replace(self._scheduler.stats(), step_p99_s=self._p99_s)

    def close(self) -> None:
        self._runner.close()

    def _step(self) -> None:
        step = self._schedule_first()
        if step is None:
            return
        try:
            self._runner.forward(step.batch)
            output = self._runner.sample(None)
        except RunnerError as error:
            self._scheduler.fail(step, error)
            return
        self._scheduler.commit(step, output)

    def _step_ahead(self) -> None:
        current = self._in_flight or self._launch(self._schedule_first())
        self._in_flight = None
        if current is None:
            return
        following = self._scheduler.schedule()
        try:
            output = self._runner.sample(None)
        except RunnerError as error:
            self._scheduler.fail(current, error)
            self._in_flight = self._launch(self._scheduler.prune(following))
            return
        if output.errors:
            # A failed row has no id for the next step to go on with: settle first.
            self._scheduler.commit(current, output)
            self._in_flight = self._launch(self._scheduler.prune(following))
            return
        refusal = self._forward(following)
        self._scheduler.commit(current, output)
        if following is not None and refusal is not None:
            self._scheduler.fail(following, refusal)
        else:
            self._in_flight = following

    def _schedule_first(self) -> Step | None:
        """A step when none is in flight. Work that cannot even start would wait for ever behind a green health."""
        step = self._scheduler.schedule()
        if step is None and self._scheduler.has_work():
            raise EngineDead("the scheduler can place none of the requests it holds")
        return step

    def _launch(self, step: Step | None) -> Step | None:
        """Hands a step to the runner; None when there is none, or when it failed at once."""
        refusal = self._forward(step)
        if step is None or refusal is None:
            return step
        self._scheduler.fail(step, refusal)
        return None

    def _forward(self, step: Step | None) -> RunnerError | None:
        if step is not None:
            try:
                self._runner.forward(step.batch)
            except RunnerError as error:
                return error
        return None

    def _note(self, duration_s: float) -> None:
        self._durations_s.append(duration_s)
        self._num_noted += 1
        if self._num_noted % 64 == 0:
            ordered = sorted(self._durations_s)
            self._p99_s = ordered[int(len(ordered) * 0.99)]
