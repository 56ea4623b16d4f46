"""What weights of int8 cost and bring: perplexity on a text of this repository, and tokens a second.

Every variant computes the same tokens in this process, without a server: the text in chunks, of which each token is
scored given those before it; a prompt; then steps in which so many sequences get one token each, after 64 others. By
default on one core, and in its CPU seconds: they say the same on a machine that has other work.

    python benchmarks/quantization.py [--quick] [--model DIR] [--rows 1,8,32] [--variant float32 --variant int8 ...]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from report import Figure, publish
from tokenizers import Tokenizer

from tickertape.plugins import BackendOptions, Limits, ModelSpec, Row
from tickertape.plugins.backends.transformers.cpu.threads import use_threads
from tickertape.plugins.backends.transformers.runner import TransformersRunner, make
from tickertape.plugins.manager import Plugins
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

ROOT = Path(__file__).parents[1]
VARIANTS = {
    "float32": ("float32", "none"),
    "bfloat16": ("bfloat16", "none"),
    "int8": ("float32", "int8"),
    "int8-bfloat16": ("bfloat16", "int8"),
}
TEXTS = ("README.md", "docs/architecture.md", "docs/weights.md")
BLOCK = 16
CHUNK = 512
CONTEXT = 64


@contextmanager
def started(spec: ModelSpec, dtype: str, num_threads: int, max_rows: int) -> Iterator[TransformersRunner]:
    runner = make(spec, BackendOptions(dtype=dtype, num_threads=num_threads))
    weights = MappedWeights(Path(spec.path))
    limits = Limits(max_model_len=CHUNK, max_num_seqs=max_rows, max_batch_tokens=CHUNK, block_tokens=BLOCK)
    try:
        plan = runner.plan(limits)
        for _ in runner.load(weights):
            pass
        runner.allocate([1 + max_rows * CHUNK // BLOCK] * len(plan.groups))
        use_threads(num_threads)
        yield runner
    finally:
        runner.close()
        weights.close()


class Steps:
    """Steps of a runner, and what they took."""

    def __init__(self, runner: TransformersRunner, max_rows: int) -> None:
        assert runner._paged is not None
        self._paged = runner._paged
        table = np.arange(1, 1 + max_rows * CHUNK // BLOCK, dtype=np.int32).reshape(max_rows, -1)
        self._tables = [table]

    def logits(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._paged.logits(rows, self._tables).double().numpy()
        return found

    def median_s(self, steps: Sequence[Sequence[Row]], num_warm: int = 2) -> float:
        taken = []
        for rows in steps:
            began = time.process_time()
            self._paged.logits(rows, self._tables)
            taken.append(time.process_time() - began)
        return statistics.median(taken[num_warm:])


def perplexity(steps: Steps, ids: Sequence[int]) -> float:
    """Of all tokens but the first of each chunk."""
    total, count = 0.0, 0
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        logits = steps.logits([Row(0, chunk, 0, len(chunk))])[:-1]
        top = logits.max(axis=-1, keepdims=True)
        logprobs = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
        total -= float(logprobs[np.arange(len(chunk) - 1), chunk[1:]].sum())
        count += len(chunk) - 1
    return math.exp(total / count)


def measured(steps: Steps, ids: Sequence[int], num_rows: Sequence[int], num_steps: int) -> dict[str, float]:
    """Tokens a second."""
    prompt = [[Row(0, ids[:CHUNK], 0, 1)]] * 4
    found = {"prompt": CHUNK / steps.median_s(prompt, num_warm=1)}
    for count in num_rows:
        for slot in range(count):
            steps.logits([Row(slot, ids[slot : slot + CONTEXT], 0, 1)])
        decoding = [[Row(slot, ids[at + slot : at + slot + 1], at, 1) for slot in range(count)]
                    for at in range(CONTEXT, CONTEXT + num_steps)]  # fmt: skip
        found[f"rows_{count}"] = count / steps.median_s(decoding)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    num_rows = [int(part) for part in options.rows.split(",")]
    figures: list[Figure] = []
    plugins = Plugins.load(process="fetcher")
    with tempfile.TemporaryDirectory() as directory:
        store = Store(options.store or Path(directory))
        for variant in options.variant or list(VARIANTS):
            dtype, quantization = VARIANTS[variant]
            spec = materialize(
                options.model, store=store, sources=plugins.sources, report=lambda _: None,
                dtype=dtype, quantization=quantization,
            )  # fmt: skip
            ids = ids_of(spec, 512 if options.quick else options.tokens)
            with started(spec, dtype, options.threads, max(num_rows)) as runner:
                steps = Steps(runner, max(num_rows))
                name = f"quantization.{variant}"
                figures.append(Figure(f"{name}.weights", spec.weight_bytes / 2**20, "MiB"))
                if not options.no_perplexity:
                    figures.append(Figure(f"{name}.perplexity", perplexity(steps, ids), "", what=f"{len(ids)} tokens"))
                for what, rate in measured(steps, ids, num_rows, 8 if options.quick else 24).items():
                    figures.append(Figure(f"{name}.{what}", rate, "tok/s", better="higher"))
    publish(f"{options.model or 'demo model'}, {options.threads} core(s), CPU time", figures)


def ids_of(spec: ModelSpec, count: int) -> list[int]:
    text = "\n".join((ROOT / name).read_text() for name in TEXTS)
    ids: list[int] = Tokenizer.from_file(str(Path(spec.path) / "tokenizer.json")).encode(text).ids
    return ids[:count]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="512 tokens of text, few steps")
    parser.add_argument("--model", help="a model directory; default: the demo model")
    parser.add_argument("--store", type=Path, help="default: one that is gone afterwards")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--rows", default="1,8,32", help="sequences that get a token each")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-perplexity", action="store_true", help="for models of random weights")
    return parser


if __name__ == "__main__":
    main()
