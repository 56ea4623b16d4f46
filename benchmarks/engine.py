"""F10: what the engine itself costs per step, with a runner that costs nothing worth mentioning.

Times `EngineLoop.step` plus the statistics the driver takes with each step, less the time spent inside the runner's
forward and sample. Every row decodes; one step in sixteen also takes a block per row. Nothing but the interpreter
bounds it: no device, no socket, no text.

    python benchmarks/engine.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from report import Figure, publish

from tickertape.core.backend import Capabilities
from tickertape.core.batch import Batch, Masks, StepOutput
from tickertape.core.engine import paged_loop
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.plugins.backends.scripted.runner import ScriptedRunner
from tickertape.plugins.backends.scripted.script import Play, Script

PROMPT_TOKENS = 60
GOALS_US = {1: 60.0, 32: 250.0, 256: 1500.0}


class Timed(ScriptedRunner):
    """The scripted runner, with a watch on its own share."""

    spent_s = 0.0

    def forward(self, batch: Batch) -> None:
        started = time.perf_counter()
        super().forward(batch)
        self.spent_s += time.perf_counter() - started

    def sample(self, masks: Masks | None) -> StepOutput:
        started = time.perf_counter()
        output = super().sample(masks)
        self.spent_s += time.perf_counter() - started
        return output


def engine(num_rows: int, *, ahead: bool, num_steps: int) -> tuple[EngineLoop, Timed]:
    """A loop with `num_rows` sequences, all past their prompt."""
    play = Play(tokens=tuple(range(2, 400)), then="repeat")
    runner = Timed(Script(plays=(play,), vocab_size=512, eos_token=0))
    limits = Limits(max_model_len=4096, max_num_seqs=256, max_batch_tokens=32768, block_tokens=16)
    loop, _, _ = paged_loop(runner, limits, Capabilities(ahead=ahead), num_blocks=256 * 256 + 1)
    for number in range(num_rows):
        prompt = [number % 512] * PROMPT_TOKENS
        sampling = SamplingParams(max_tokens=num_steps + 100, seed=number, stop_tokens=(0,))
        loop.submit(Request(id=number, prompt=pack_tokens(prompt), num_prompt_tokens=PROMPT_TOKENS, sampling=sampling))
    for _ in range(20):
        loop.step()
    assert loop.stats().num_running == num_rows
    return loop, runner


def overheads_us(num_rows: int, *, ahead: bool, num_steps: int) -> list[float]:
    loop, runner = engine(num_rows, ahead=ahead, num_steps=num_steps)
    samples = []
    for _ in range(num_steps):
        runner.spent_s = 0.0
        started = time.perf_counter()
        events = loop.step()
        loop.stats()
        samples.append((time.perf_counter() - started - runner.spent_s) * 1e6)
        assert len(events.deltas) == num_rows
    return samples


def measure(num_steps: int, num_repeats: int) -> list[Figure]:
    figures = []
    for num_rows, goal in GOALS_US.items():
        medians: dict[bool, list[float]] = {False: [], True: []}
        tails: list[float] = []
        for _ in range(num_repeats):
            for ahead in medians:
                samples = overheads_us(num_rows, ahead=ahead, num_steps=num_steps)
                medians[ahead].append(statistics.median(samples))
                if not ahead:
                    tails.append(statistics.quantiles(samples, n=100)[98])
        row = f"{num_rows} rows"
        figures += [
            Figure(f"F10.{num_rows}", statistics.median(medians[False]), "us", goal, what=f"median step, {row}"),
            Figure(f"F10.{num_rows}.ahead", statistics.median(medians[True]), "us", goal, what="one step ahead"),
            Figure(f"F10.{num_rows}.p99", statistics.median(tails), "us", what=f"p99 step, {row}"),
        ]
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    options = parser.parse_args(arguments)
    publish("engine overhead per step", measure(*((300, 3) if options.quick else (2000, 7))))


if __name__ == "__main__":
    main()
