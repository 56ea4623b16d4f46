"""G1..G5: what structured output costs on the demo model: masks, the share of a step, compilation.

Two engines of the same 32 rows take turns, one with a different schema for each row, one without; both sample greedily,
so that the free one has the sampler's fastest path. The share of a step counts all that grammars add to it, as if none
of it were hidden: filling the masks (which happens while the runner computes), sampling under them, moving over the new
tokens. The lower fifth of the times is taken, since a busy machine slows single steps, not all.

    python benchmarks/grammar.py [--quick] [--store DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from report import Figure, publish

from tickertape.api.tokenizer import TextTokenizer
from tickertape.core.backend import Backend, BackendOptions, ModelSpec
from tickertape.core.batch import Masks, StepOutput
from tickertape.core.engine import paged_loop
from tickertape.core.grammar import Constraint
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits
from tickertape.core.messages import Configure
from tickertape.core.ports import ModelRunner
from tickertape.core.request import Grammar, Request, SamplingParams, pack_tokens
from tickertape.engine_room import make
from tickertape.grammar.compiler import MatcherCompiler, compile_matcher
from tickertape.grammar.vocabulary import model_vocabulary, sketch_vocabulary
from tickertape.plugins.manager import Plugins
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

NUM_ROWS = 32
NUM_PROMPT_TOKENS = 32
LIMITS = Limits(max_model_len=1024, max_num_seqs=NUM_ROWS, max_batch_tokens=2048, block_tokens=16)


def schema(n: int) -> dict[str, Any]:
    """An object of the kind that programs ask for; no two alike."""
    return {
        "type": "object",
        "properties": {
            f"title_{n}": {"type": "string"},
            f"count_{n}": {"type": "integer", "minimum": 0, "maximum": 10 + n},
            f"kind_{n}": {"enum": [f"{word}_{n}" for word in ("small", "middle", "large")]},
            f"tags_{n}": {"type": "array", "items": {"type": "string", "maxLength": 20 + n}, "maxItems": 4},
            f"owner_{n}": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "born": {"type": "string", "format": "date"},
                },
                "required": ["id"],
                "additionalProperties": False,
            },
        },
        "required": [f"title_{n}", f"count_{n}", f"kind_{n}"],
        "additionalProperties": False,
    }


def endless(n: int) -> Grammar:
    """So many of them that the row does not end while it is measured."""
    return Grammar("json_schema", json.dumps({"type": "array", "items": schema(n), "minItems": 10_000}))


class Watched:
    """A constraint with a watch on its masks and on what it is fed."""

    def __init__(self, constraint: Constraint, fills_s: list[float], accepts_s: list[float]) -> None:
        self._constraint = constraint
        self._fills_s = fills_s
        self._accepts_s = accepts_s

    @property
    def is_done(self) -> bool:
        return self._constraint.is_done

    def accept(self, tokens: Sequence[int]) -> None:
        started = time.perf_counter()
        self._constraint.accept(tokens)
        self._accepts_s.append(time.perf_counter() - started)

    def fill(self, line: NDArray[np.int32]) -> None:
        started = time.perf_counter()
        self._constraint.fill(line)
        self._fills_s.append(time.perf_counter() - started)


class WatchedCompiler:
    def __init__(self, compiler: MatcherCompiler) -> None:
        self.mask_words = compiler.mask_words
        self.fills_s: list[float] = []
        self.accepts_s: list[float] = []
        self._compiler = compiler

    def compile(self, grammar: Grammar, stop_tokens: Collection[int]) -> Watched:
        return Watched(self._compiler.compile(grammar, stop_tokens), self.fills_s, self.accepts_s)


class WatchedRunner:
    """A runner with a watch on its sampling."""

    def __init__(self, runner: ModelRunner) -> None:
        self.samples_s: list[float] = []
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def sample(self, masks: Masks | None) -> StepOutput:
        started = time.perf_counter()
        output = self._runner.sample(masks)
        self.samples_s.append(time.perf_counter() - started)
        return output


def engine(
    spec: ModelSpec, backend: Backend, compiler: WatchedCompiler, *, constrained: bool
) -> tuple[EngineLoop, WatchedRunner]:
    """A loop whose rows are past their prompts."""
    configure = Configure(epoch=0, spec=spec, backend=backend.name, options=BackendOptions(), limits=LIMITS, plugins={})
    runner = WatchedRunner(make(backend, configure))
    runner.plan(LIMITS)
    for _ in runner.load(MappedWeights(Path(spec.path))):
        pass
    num_blocks = NUM_ROWS * LIMITS.max_model_len // LIMITS.block_tokens + 1
    loop, _, _ = paged_loop(
        cast(ModelRunner, runner), LIMITS, backend.capabilities, num_blocks=num_blocks, grammars=compiler
    )
    for n in range(NUM_ROWS):
        prompt = [100 + n] * NUM_PROMPT_TOKENS
        loop.submit(
            Request(
                id=n,
                prompt=pack_tokens(prompt),
                num_prompt_tokens=NUM_PROMPT_TOKENS,
                sampling=SamplingParams(max_tokens=900, seed=n, temperature=0.0),
                grammar=endless(n) if constrained else None,
            )
        )
    while loop.num_compiling or loop.stats().num_running < NUM_ROWS:
        if loop.has_work():
            loop.step()
    for _ in range(3):
        loop.step()
    runner.samples_s.clear()
    return loop, runner


def step_s(loop: EngineLoop) -> float:
    started = time.perf_counter()
    events = loop.step()
    taken = time.perf_counter() - started
    assert len(events.deltas) == NUM_ROWS, f"only {len(events.deltas)} rows ran: {events.failures[:1]}"
    return taken


def steps(spec: ModelSpec, plugins: Plugins, compiler: MatcherCompiler, num_steps: int) -> list[Figure]:
    backend = plugins.choose(spec, None)
    watched = WatchedCompiler(compiler)
    free, free_runner = engine(spec, backend, watched, constrained=False)
    held, held_runner = engine(spec, backend, watched, constrained=True)
    watched.fills_s.clear()
    watched.accepts_s.clear()
    free_s, held_s = [], []
    for _ in range(num_steps):
        free_s.append(step_s(free))
        held_s.append(step_s(held))
    fills_us = [taken * 1e6 for taken in watched.fills_s]
    masks_ms = _usual(_sums(watched.fills_s)) * 1e3
    accepts_ms = _usual(_sums(watched.accepts_s)) * 1e3
    sampling_ms = (_usual(held_runner.samples_s) - _usual(free_runner.samples_s)) * 1e3
    step_ms = _usual(held_s) * 1e3
    free.close()
    held.close()
    return [
        Figure("G1.mask", statistics.mean(fills_us), "us", what="mask of a row for a token, mean"),
        Figure("G1.mask.p99", statistics.quantiles(fills_us, n=100)[98], "us"),
        Figure("G1.accept", statistics.mean(watched.accepts_s) * 1e6, "us", what="moving over a token, mean"),
        Figure("G2.step", step_ms, "ms", what=f"a step of {NUM_ROWS} rows, {NUM_ROWS} schemas, {backend.name}"),
        Figure("G2.step.free", _usual(free_s) * 1e3, "ms", what="the same without schemas"),
        Figure("G2.masks", masks_ms, "ms", what="all masks of a step"),
        Figure("G2.sampling", sampling_ms, "ms", what="sampling under them, more than without"),
        Figure("G2.accepts", accepts_ms, "ms", what="moving over the step's tokens"),
        Figure(
            "G2.share",
            (masks_ms + sampling_ms + accepts_ms) / step_ms * 100,
            "%",
            10.0,
            what="of the step that grammars take, were nothing hidden",
        ),
    ]


def compilation(spec: ModelSpec, compiler: MatcherCompiler, num_schemas: int) -> list[Figure]:
    directory = Path(spec.path)
    grammars = [Grammar("json_schema", json.dumps(schema(1000 + n))) for n in range(num_schemas)]
    cold_ms = _times_ms(lambda grammar: compiler.compile(grammar, ()), grammars)
    warm_ms = _times_ms(lambda grammar: compiler.compile(grammar, ()), grammars[-50:])
    sketch = sketch_vocabulary(TextTokenizer.from_directory(directory), spec.vocab_size)
    check_ms = _times_ms(lambda grammar: compile_matcher(sketch, grammar), grammars)
    started = time.perf_counter()
    model_vocabulary(directory, spec.vocab_size, {})
    return [
        Figure("G3.compile", statistics.median(cold_ms), "ms", what="a schema not seen before, median"),
        Figure("G3.compile.p99", statistics.quantiles(cold_ms, n=100)[98], "ms"),
        Figure("G3.again", statistics.median(warm_ms), "ms", what="a schema seen before"),
        Figure("G4.check.p99", statistics.quantiles(check_ms, n=100)[98], "ms", what="the front's check of one"),
        Figure("G5.vocabulary", time.perf_counter() - started, "s", what="once, while the weights load"),
    ]


def _usual(times_s: Sequence[float]) -> float:
    return statistics.quantiles(times_s, n=5)[0]


def _sums(times_s: Sequence[float]) -> list[float]:
    """Of each step."""
    return [sum(times_s[n : n + NUM_ROWS]) for n in range(0, len(times_s) - NUM_ROWS + 1, NUM_ROWS)]


def _times_ms(work: Any, grammars: Sequence[Grammar]) -> list[float]:
    times = []
    for grammar in grammars:
        started = time.perf_counter()
        work(grammar)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and schemas")
    parser.add_argument("--store", type=Path, default=Path("~/.cache/tickertape"), help="where the demo model is kept")
    options = parser.parse_args(arguments)
    plugins = Plugins.load()
    store = Store(options.store.expanduser())
    spec = materialize(None, store=store, sources=plugins.sources, report=lambda _: None)
    compiler = MatcherCompiler(spec.vocab_size, lambda: model_vocabulary(Path(spec.path), spec.vocab_size, {}))
    compiler.ready()
    figures = compilation(spec, compiler, 200 if options.quick else 1000)
    figures += steps(spec, plugins, compiler, 20 if options.quick else 200)
    publish("structured output", figures)


if __name__ == "__main__":
    main()
