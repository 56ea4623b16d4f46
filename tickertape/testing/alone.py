"""A runner as its own truth: one sequence, whole, in one step of an otherwise empty engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tickertape.plugins import Batch, Limits, ModelRunner, Opened, Row, SamplingParams, WeightSet, pack_tokens

__all__ = ["Alone"]


class Alone:
    """Token ids [T] to log probabilities [T, V]. The runner is made when it is first asked."""

    def __init__(
        self, make: Callable[[], ModelRunner], weights: Callable[[], WeightSet], vocab_size: int, longest: int = 256
    ) -> None:
        self._make = make
        self._weights = weights
        self._vocab_size = vocab_size
        self._limits = Limits(max_model_len=longest, max_num_seqs=1, max_batch_tokens=longest, block_tokens=longest)
        self._runner: ModelRunner | None = None
        self._num_steps = 0

    def __call__(self, ids: Sequence[int]) -> NDArray[np.float64]:
        runner = self._ready()
        everything = self._vocab_size
        sampling = SamplingParams(
            max_tokens=1, seed=0, temperature=0.0, logprobs=everything, prompt_logprobs=everything
        )
        self._num_steps += 1
        row = Row(0, list(ids), 0, len(ids))
        opened = Opened(0, sampling, pack_tokens(list(ids)), len(ids))
        closed = (0,) if self._num_steps > 1 else ()
        runner.forward(Batch(self._num_steps, (row,), (opened,), closed, self._tables))
        scored = runner.sample(None).logprobs
        assert scored is not None, "the backend scores no prompts"
        lines = np.empty((len(ids), everything))
        np.put_along_axis(lines, np.asarray(scored.ids)[:, 1:], np.asarray(scored.values)[:, 1:], axis=1)
        return lines

    def _ready(self) -> ModelRunner:
        if self._runner is None:
            self._runner = runner = self._make()
            plan = runner.plan(self._limits)
            for _ in runner.load(self._weights()):
                pass
            runner.allocate([2] * len(plan.groups))
            self._tables = tuple(np.ones((1, 1), dtype=np.int32) for _ in plan.groups)
        return self._runner
