"""Our paged engine passes the kit, over the scripted and over the reference backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tickertape.core.engine import PagedEngine
from tickertape.plugins import Engine, Limits, ModelSpec
from tickertape.plugins.manager import Plugins
from tickertape.testing.engine import EngineConformance
from tickertape.testing.engines import paged_engine
from tickertape.testing.models import write_llama, write_scripted
from tickertape.testing.rig import EngineSubject

LIMITS = Limits(max_model_len=1024, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)


def scripted_model(directory: Path) -> ModelSpec:
    """Every prompt comes back, over and over; slow enough to be cancelled."""
    return write_scripted(directory, [{"echo": True, "then": "repeat"}], eos_token_id=0, token_s=0.001, chunk_s=0.002)


async def kill(engine: Engine) -> None:
    """What a runner may do that no engine outlives."""
    assert isinstance(engine, PagedEngine)

    def fail(*_: object) -> None:
        raise MemoryError("the device is gone")

    engine._loop._runner.sample = fail  # type: ignore[method-assign,assignment]


def opener(name: str, spec: ModelSpec) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    backend = Plugins.load().backend(name)
    return lambda: paged_engine(backend, spec, LIMITS)


class TestScripted(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> EngineSubject:
        spec = scripted_model(tmp_path_factory.mktemp("scripted"))
        return EngineSubject(
            open=opener("scripted", spec), vocab_size=spec.vocab_size, max_model_len=1024, max_num_seqs=4, kill=kill
        )


class TestReference(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> EngineSubject:
        spec = write_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=1024)
        return EngineSubject(
            open=opener("reference", spec), vocab_size=spec.vocab_size, max_model_len=1024, max_num_seqs=4, kill=kill
        )
