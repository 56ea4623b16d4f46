"""What a conformance suite tests: a runner, and the truth about its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tickertape.core.backend import load_factory
from tickertape.plugins import (
    Backend,
    BackendOptions,
    Capabilities,
    Limits,
    MemoryPlan,
    ModelRunner,
    ModelSpec,
    WeightSet,
)
from tickertape.testing.alone import Alone
from tickertape.testing.models import plain_model
from tickertape.weights.mapping import MappedWeights

__all__ = ["Subject"]


def _leave(runner: ModelRunner) -> None:
    """Without a hook the KV memory is left as it was allocated."""


@dataclass(frozen=True)
class Subject:
    """A runner under test.

    `make` gives a fresh runner, nothing called on it yet; `plain` maps token ids [T] to the plain model's logits
    [T, V]. `near_tie` is how far below the plain model's best logit a greedy token's may lie: 0 in float64, 1e-3 in
    float32. `tolerance` is what log probabilities may differ by. `poison`, where the author gives it, fills all KV
    memory of an allocated runner with NaN, so that a read of memory that was never written shows. `make_with` makes
    one with other options, for what the capabilities say of dtypes and quantizations; None: that is not tested.
    """

    make: Callable[[], ModelRunner]
    weights: Callable[[], WeightSet]
    plain: Callable[[Sequence[int]], NDArray[np.float64]]
    vocab_size: int
    capabilities: Capabilities = field(default_factory=Capabilities)
    near_tie: float = 0.0
    tolerance: float = 1e-4
    make_with: Callable[[BackendOptions], ModelRunner] | None = None
    poison: Callable[[ModelRunner], None] = _leave

    @classmethod
    def of(
        cls,
        backend: Backend,
        spec: ModelSpec,
        *,
        options: BackendOptions | None = None,
        near_tie: float = 0.0,
        poison: Callable[[ModelRunner], None] = _leave,
    ) -> Subject:
        """The backend on the model in `spec.path`, against transformers' model of the same directory in float64."""
        reason = backend.supports(spec)
        assert reason is None, f"{backend.name} does not support {spec.name}: {reason}"
        factory = load_factory(backend)
        given = options or BackendOptions()
        return cls(
            make=lambda: factory(spec, given),
            make_with=lambda chosen: factory(
                spec, msgspec.structs.replace(given, dtype=chosen.dtype, quantization=chosen.quantization)
            ),
            weights=lambda: MappedWeights(Path(spec.path)),
            plain=plain_model(spec),
            vocab_size=spec.vocab_size,
            capabilities=backend.capabilities,
            near_tie=near_tie,
            poison=poison,
        )

    @classmethod
    def by_itself(
        cls,
        backend: Backend,
        spec: ModelSpec,
        *,
        options: BackendOptions | None = None,
        near_tie: float = 0.0,
    ) -> Subject:
        """The backend against itself: the truth is what it says of a whole sequence, alone, in one step. For models
        that nobody else computes; shows mistakes of paging and batching, not of the model. The backend must score
        prompts."""
        reason = backend.supports(spec)
        assert reason is None, f"{backend.name} does not support {spec.name}: {reason}"
        factory = load_factory(backend)
        given = options or BackendOptions()

        def make() -> ModelRunner:
            runner: ModelRunner = factory(spec, given)
            return runner

        def weights() -> WeightSet:
            return MappedWeights(Path(spec.path))

        return cls(
            make=make,
            weights=weights,
            plain=Alone(make, weights, spec.vocab_size),
            vocab_size=spec.vocab_size,
            capabilities=backend.capabilities,
            near_tie=near_tie,
            make_with=lambda chosen: factory(
                spec, msgspec.structs.replace(given, dtype=chosen.dtype, quantization=chosen.quantization)
            ),
        )

    def made_by(self, make: Callable[[], ModelRunner]) -> Subject:
        """The same subject with other runners."""
        return replace(self, make=make)

    def loaded(self, limits: Limits) -> tuple[ModelRunner, MemoryPlan]:
        """A runner that has promised and loaded, but not allocated."""
        runner = self.make()
        plan = runner.plan(limits)
        for _ in runner.load(self.weights()):
            pass
        return runner, plan

    def check_greedy(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Every token of `output` is what the plain model holds likeliest after all before it, or nearly ties with it.
        Returns how many only nearly tied."""
        num_near_ties = 0
        logits = self.plain([*prompt, *output])[len(prompt) - 1 : -1]
        for i, (token, line) in enumerate(zip(output, logits, strict=True)):
            best = int(line.argmax())
            assert line[best] - line[token] <= self.near_tie, (
                f"output token {i} (position {len(prompt) + i}) is {token}, the plain model's is {best}, "
                f"{line[best] - line[token]:.3g} above it"
            )
            num_near_ties += best != token
        return num_near_ties

    def log_softmax(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """The plain model's log probabilities [T, V]."""
        logits = self.plain(ids)
        logits = logits - logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))  # type: ignore[no-any-return]
