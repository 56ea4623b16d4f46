"""A state machine of what befalls servers that contend for slots: `run(num_runs)` is what the tests call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec import Struct

from tests.sim.contenders import Cluster, Contender, check_throttle

__all__ = ["Tally", "explore"]

_NUM_CONTENDERS: Final = 5
_MAX_CONTENDERS: Final = 10
_SECONDS: Final = st.floats(0, 20) | st.sampled_from([9.9, 10.1, 15.1, 60.0])


class Tally(Struct):
    """What happened in all runs together, so that a test can tell that something did."""

    num_runs: int = 0
    num_requests: int = 0
    num_refused: int = 0
    num_late: int = 0
    num_returned: int = 0
    num_halved: int = 0
    num_raised: int = 0
    simulated_s: float = 0.0


def explore(num_runs: int, num_steps: int) -> Tally:
    """Runs the machine that often. Raises AssertionError, with the shortest run that shows the fault."""
    tally = Tally()

    class Faults(RuleBasedStateMachine):
        cluster: Cluster

        @initialize(seed=st.integers(0, 2**32), num_slots=st.integers(1, 4))
        def start(self, seed: int, num_slots: int) -> None:
            self.cluster = Cluster(seed, num_slots=num_slots, num_contenders=_NUM_CONTENDERS)

        @rule(seconds=_SECONDS)
        def time_passes(self, seconds: float) -> None:
            self.cluster.world.advance(seconds)

        @precondition(lambda self: self._running())
        @rule(data=st.data())
        def stop(self, data: st.DataObject) -> None:
            self.cluster.stop(data.draw(st.sampled_from(self._running())))
            self._go_on()

        @rule(seconds=st.sampled_from([8.0, 12.0, 16.0, 20.0, 30.0]))
        def freeze_the_next_writer(self, seconds: float) -> None:
            self.cluster.stop_next_writer()
            self.cluster.world.advance(seconds)
            for contender in self._stopped():
                self.cluster.resume(contender)
            self._go_on()

        @precondition(lambda self: self._stopped())
        @rule(data=st.data())
        def resume(self, data: st.DataObject) -> None:
            self.cluster.resume(data.draw(st.sampled_from(self._stopped())))
            self._go_on()

        @precondition(lambda self: self._running() and len(self.cluster.contenders) < _MAX_CONTENDERS)
        @rule(data=st.data())
        def kill(self, data: st.DataObject) -> None:
            self.cluster.kill(data.draw(st.sampled_from(self._running())))
            self.cluster.join()
            self._go_on()

        @rule(loss=st.sampled_from([0.0, 0.1, 0.5]), delay_s=st.sampled_from([0.02, 0.5, 2.0]), down=st.booleans())
        def trouble(self, loss: float, delay_s: float, down: bool) -> None:
            self.cluster.trouble(delay_s=delay_s, loss=loss, down=down)
            self._go_on()

        @rule()
        def calm(self) -> None:
            self.cluster.trouble()
            self._go_on()

        @rule(seconds=st.floats(0.5, 120))
        def refuse(self, seconds: float) -> None:
            self.cluster.refuse(seconds)
            self._go_on()

        def _go_on(self) -> None:
            self.cluster.world.advance(self.cluster.world.random.expovariate(0.2))

        def teardown(self) -> None:
            if hasattr(self, "cluster"):
                check_throttle(self.cluster.throttle.history, self.cluster.num_slots)
                _count(tally, self.cluster)
                self.cluster.close()

        def _running(self) -> Sequence[Contender]:
            return [one for one in self.cluster.contenders if one.process.alive and not one.process.stopped]

        def _stopped(self) -> Sequence[Contender]:
            return [one for one in self.cluster.contenders if one.process.alive and one.process.stopped]

    run_state_machine_as_test(
        Faults,
        settings=settings(
            max_examples=num_runs,
            stateful_step_count=num_steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            database=None,
        ),
    )
    return tally


def _count(tally: Tally, cluster: Cluster) -> None:
    tally.num_runs += 1
    tally.num_requests += cluster.num_requests
    tally.num_refused += cluster.num_refused
    tally.num_late += cluster.num_late
    tally.num_returned += len(cluster.returns)
    tally.simulated_s += cluster.world.now
    numbers = [cluster.num_slots if r.num_slots is None else r.num_slots for _, r in cluster.throttle.history]
    tally.num_halved += sum(after < before for before, after in pairwise(numbers))
    tally.num_raised += sum(after > before for before, after in pairwise(numbers))
