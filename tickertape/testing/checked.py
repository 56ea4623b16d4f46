"""The subjects that `tickertape check` makes of a backend and a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from tickertape.core.backend import load_factory
from tickertape.plugins import Backend, BackendOptions, Engine, ModelSpec
from tickertape.testing.rig import EngineSubject
from tickertape.testing.subject import Subject

__all__ = ["engine_subject", "runner_subject"]


def runner_subject(backend: Backend, spec: ModelSpec) -> Subject:
    """The runner against transformers' model where there is one, else against itself. Exact in float64, if the backend
    computes in it."""
    exact = "float64" in backend.capabilities.dtypes
    options = BackendOptions(dtype="float64" if exact else "auto")
    near_tie = 0.0 if exact else 1e-3
    if _transformers_knows(spec):
        return Subject.of(backend, spec, options=options, near_tie=near_tie)
    return Subject.by_itself(backend, spec, options=options, near_tie=near_tie)


def engine_subject(backend: Backend, spec: ModelSpec) -> EngineSubject:
    """How many sequences it runs at once is not known, nor how to kill it: those rules are left out."""
    factory = load_factory(backend)

    @asynccontextmanager
    async def started() -> AsyncIterator[Engine]:
        engine: Engine = factory(spec, BackendOptions())
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop(0.0)

    return EngineSubject(
        open=started,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
        capabilities=backend.capabilities,
    )


def _transformers_knows(spec: ModelSpec) -> bool:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return False
    import transformers

    return spec.architecture.endswith("ForCausalLM") and hasattr(transformers, spec.architecture)
