"""The driver tells what a step gave, that the engine fell idle, and that a silent engine still moves."""

from __future__ import annotations

from threading import Thread

from tickertape.core.backend import Capabilities
from tickertape.core.driver import Driver
from tickertape.core.engine import paged_loop
from tickertape.core.memory import Limits
from tickertape.core.ports import EngineStats
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.core.step import StepEvents
from tickertape.testing.oracle import OracleRunner

LIMITS = Limits(max_model_len=400, max_num_seqs=2, max_batch_tokens=4, block_tokens=4)


def drive(num_prompt_tokens: int, step_s: float) -> list[tuple[int, EngineStats]]:
    """(deltas, statistics) as they were told while one request was served, each look at the clock taking `step_s`."""
    now = [0.0]

    def clock() -> float:
        now[0] += step_s
        return now[0]

    told: list[tuple[int, EngineStats]] = []
    loop, _, _ = paged_loop(OracleRunner(), LIMITS, Capabilities(), num_blocks=200)

    def sink(events: StepEvents, stats: EngineStats) -> None:
        told.append((len(events.deltas), stats))
        if not stats.num_running:
            driver.stop()

    driver = Driver(loop, sink, clock=clock)
    prompt = pack_tokens([1] * num_prompt_tokens)
    driver.submit(Request(id=1, prompt=prompt, num_prompt_tokens=num_prompt_tokens, sampling=_sampling()))
    thread = Thread(target=driver.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return told


def _sampling() -> SamplingParams:
    return SamplingParams(max_tokens=2, seed=0)


def test_a_quick_prefill_is_silent() -> None:
    told = drive(40, step_s=0.0)
    assert [num_deltas for num_deltas, _ in told][:1] == [1]


def test_a_slow_prefill_shows_that_it_moves() -> None:
    told = drive(40, step_s=0.6)
    before = [stats.num_steps for num_deltas, stats in told if num_deltas == 0 and stats.num_running]
    assert len(before) >= 4
    assert before == sorted(set(before))
