"""The whole way to a worker and back passes the engine's kit: supervisor, link, worker process, paged engine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tickertape.children import Child
from tickertape.core.backend import BackendOptions
from tickertape.core.errors import TickertapeError
from tickertape.core.messages import Configure, Ready
from tickertape.core.ports import Progress
from tickertape.plugins import Engine, Limits, ModelSpec
from tickertape.remote_engine import RemoteEngine
from tickertape.supervisor import Supervisor
from tickertape.testing.engine import EngineConformance
from tickertape.testing.models import write_scripted
from tickertape.testing.rig import EngineSubject

LIMITS = Limits(max_model_len=1024, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)


class Watching:
    """A Watcher that waits for the first worker."""

    def __init__(self) -> None:
        self.up = asyncio.Event()

    def loading(self, name: str, progress: Progress) -> None: ...
    def ready(self, name: str, ready: Ready) -> None:
        self.up.set()

    def lost(self, name: str, error: TickertapeError) -> None: ...


class Workers:
    """Starts workers, and knows the one that is alive."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def start(self) -> Child:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "tickertape.worker", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), process_group=0)
        theirs.close()
        self.children.append(Child(process, ours))
        return self.children[-1]

    async def kill(self, _: Engine) -> None:
        os.kill(self.children[-1].process.pid, signal.SIGKILL)


def opener(spec: ModelSpec, workers: Workers) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    configure = Configure(
        epoch=0,
        spec=spec,
        backend="scripted",
        options=BackendOptions(),
        limits=LIMITS,
        num_blocks=256,
        plugins={},
    )

    @asynccontextmanager
    async def started() -> AsyncIterator[Engine]:
        engine, watching = RemoteEngine(), Watching()
        supervisor = Supervisor(configure, engine, watching, workers.start)
        running = asyncio.create_task(supervisor.run())
        await asyncio.wait_for(watching.up.wait(), 30)
        try:
            yield engine
        finally:
            await supervisor.stop(0.0)
            running.cancel()
            await asyncio.wait({running})
            for child in workers.children:
                child.kill()

    return started


class TestWorker(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, tmp_path_factory: pytest.TempPathFactory) -> EngineSubject:
        directory = tmp_path_factory.mktemp("scripted")
        spec = write_scripted(
            directory, [{"echo": True, "then": "repeat"}], eos_token_id=0, token_s=0.001, chunk_s=0.002
        )
        workers = Workers()
        return EngineSubject(
            open=opener(spec, workers),
            vocab_size=spec.vocab_size,
            max_model_len=1024,
            max_num_seqs=4,
            kill=workers.kill,
        )
