"""The engine's loop body: schedule, forward, sample, commit. One step at a time, or the host one step ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from tickertape.core.arrivals import Arrivals
from tickertape.core.batch import StepOutput
from tickertape.core.compiling import Compiling
from tickertape.core.errors import EngineDead, RunnerError, TickertapeError
from tickertape.core.grammar import GrammarCompiler
from tickertape.core.masking import Masker
from tickertape.core.ports import EngineStats, ModelRunner
from tickertape.core.request import Request
from tickertape.core.scheduler import Scheduler
from tickertape.core.step import Step, StepEvents

__all__ = ["EngineLoop"]


class EngineLoop:
    """A scheduler and a runner, stepped by one thread.

    With `ahead`, step n + 1 is scheduled while the runner works on step n: ids that n is still sampling stand in it
    as LAST, and its forward is launched before n's output is looked at, so the device does not wait for Python. What
    n + 1 computed for a sequence that n turned out to finish is dropped.

    Grammars act between forward and sample: a step's masks are filled on a thread while the runner computes it. Ahead,
    the row of a constrained sequence is launched with LAST like any other, since only its mask, and not its
    computation, needs the id that is not known yet: n is settled before the masks of n + 1 are begun.

    A RunnerError fails the rows of its step; whatever else a runner raises passes through `step`, and the engine must
    be given up. Step times are kept for the p99 in `stats`; `on_step` is told each, in seconds, with the figures after.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        ahead: bool = False,
        grammars: GrammarCompiler | None = None,
        on_step: Callable[[float, EngineStats], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._ahead = ahead
        self._on_step = on_step
        self._clock = clock
        self._in_flight: Step | None = None
        self._masker = Masker(0 if grammars is None else grammars.mask_words)
        self._arrivals = Arrivals(scheduler, None if grammars is None else Compiling(grammars, clock))
        self._durations_s: deque[float] = deque(maxlen=512)
        self._num_noted = 0
        self._p99_s = 0.0

    def submit(self, request: Request) -> None:
        """Never raises for a request that cannot be served: that is a failure among a later step's events."""
        self._arrivals.submit(request)

    def abort(self, request_id: int) -> None:
        self._scheduler.abort(request_id)
        self._arrivals.abort(request_id)

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell. A request whose grammar is still being compiled gives it
        nothing to do: see `num_compiling` and `on_compiled`."""
        return self._scheduler.has_work() or self._arrivals.has_news() or self._in_flight is not None

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammar."""
        return self._arrivals.num_compiling

    def on_compiled(self, wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when there may be work again. A compilation that takes too long wakes
        nobody: while there are any, look at `has_work` now and then."""
        if self._arrivals.compiling is not None:
            self._arrivals.compiling.wake = wake

    def step(self) -> StepEvents:
        started = self._clock()
        self._arrivals.settle()
        if self._ahead:
            self._step_ahead()
        else:
            self._step()
        duration_s = self._clock() - started
        self._note(duration_s)
        if self._on_step is not None:
            self._on_step(duration_s, self.stats())
        events = self._scheduler.take_events()
        if told := self._arrivals.take_events():
            events.deltas.extend(told.deltas)
            events.failures.extend(told.failures)
        return events

    def stats(self) -> EngineStats:
        stats = self._scheduler.stats()
        return replace(stats, num_waiting=stats.num_waiting + self.num_compiling, step_p99_s=self._p99_s)

    def close(self) -> None:
        self._arrivals.close()
        self._masker.close()
        self._runner.close()

    def _step(self) -> None:
        step = self._schedule_first()
        if step is None:
            return
        self._masker.begin(step)
        try:
            self._runner.forward(step.batch)
            output, faults = self._sample()
        except RunnerError as error:
            self._scheduler.fail(step, error)
            return
        self._scheduler.commit(step, output, faults)

    def _step_ahead(self) -> None:
        current = self._in_flight or self._launch(self._schedule_first())
        self._in_flight = None
        if current is None:
            return
        following = self._scheduler.schedule()
        try:
            output, faults = self._sample()
        except RunnerError as error:
            self._scheduler.fail(current, error)
            self._in_flight = self._launch(self._scheduler.prune(following))
            return
        if output.errors or faults:
            # A failed row has no id for the next step to go on with: settle first.
            self._scheduler.commit(current, output, faults)
            self._in_flight = self._launch(self._scheduler.prune(following))
            return
        refusal = self._forward(following)
        self._scheduler.commit(current, output)
        if following is not None and refusal is not None:
            self._scheduler.fail(following, refusal)
        elif following is not None:
            self._masker.begin(following)
            self._in_flight = following

    def _sample(self) -> tuple[StepOutput, Mapping[int, TickertapeError]]:
        """The output of the step in flight, and by slot the faults of grammars that gave out."""
        masks, faults = self._masker.take()
        return self._runner.sample(masks), faults

    def _schedule_first(self) -> Step | None:
        """A step when none is in flight. Work that cannot even start would wait for ever behind a green health."""
        step = self._scheduler.schedule()
        if step is None and self._scheduler.has_work():
            raise EngineDead("the scheduler can place none of the requests it holds")
        return step

    def _launch(self, step: Step | None) -> Step | None:
        """Hands a step to the runner, whose sequences' ids are all known; None when there is none, or when it failed
        at once."""
        if step is not None:
            self._masker.begin(step)
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
