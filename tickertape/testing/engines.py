"""Engines ready for the conformance kit: our paged engine over any runner backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tickertape.core.backend import load_factory
from tickertape.core.engine import PagedEngine, paged_loop
from tickertape.plugins import Backend, BackendOptions, Limits, ModelSpec
from tickertape.weights.mapping import MappedWeights

__all__ = ["paged_engine"]


@asynccontextmanager
async def paged_engine(
    backend: Backend,
    spec: ModelSpec,
    limits: Limits,
    *,
    num_blocks: int = 256,
    options: BackendOptions | None = None,
) -> AsyncIterator[PagedEngine]:
    """Starts our engine over the backend's runner, and stops it at the end."""
    runner = load_factory(backend)(spec, options or BackendOptions())
    runner.plan(limits)
    weights = MappedWeights(Path(spec.path))
    for _ in runner.load(weights):
        pass
    loop, plan, _ = paged_loop(runner, limits, backend.capabilities, num_blocks=num_blocks)
    engine = PagedEngine(loop, plan)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0.0)
        weights.close()
