"""An engine in the front's own process: for tests, debugging and small machines. Its death is the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final, TypeVar

from tickertape.core.backend import Backend, ModelSpec
from tickertape.core.engine import PagedEngine
from tickertape.core.errors import EngineDead, TickertapeError
from tickertape.core.messages import Configure, Ready
from tickertape.core.ports import Engine, Progress
from tickertape.engine_room import PagedParts, build_loop, find_backend, start_engine
from tickertape.plugins.manager import Plugins
from tickertape.pulse import Pulse
from tickertape.supervisor import Watcher

__all__ = ["InProcess"]

_HEALTH_S: Final = 1.0

T = TypeVar("T")


class InProcess:
    """Builds the engine on a thread, then watches its health. The counterpart of a Supervisor."""

    def __init__(self, configure: Configure, plugins: Plugins, watcher: Watcher) -> None:
        self._configure = configure
        self._plugins = plugins
        self._watcher = watcher
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """From `Watcher.ready` on."""
        assert self._engine is not None
        return self._engine

    def update(self, spec: ModelSpec, *, complete: bool) -> None:
        """There is one life only: it goes on with what it began with."""

    async def run(self) -> None:
        """Until cancelled. Raises StartupError when the engine cannot start, EngineDead when it dies."""
        name = self._configure.spec.name
        backend = find_backend(self._configure, self._plugins)
        if backend.kind == "runner":
            self._engine, num_blocks = await self._paged_engine(backend)
        else:
            self._engine, num_blocks = await start_engine(backend, self._configure), ()
        self._watcher.ready(name, Ready(0, self._engine.plan(), num_blocks, self._engine.stats()))
        while True:
            await asyncio.sleep(_HEALTH_S)
            try:
                await self._engine.health()
            except EngineDead as error:
                self._watcher.lost(name, error)
                raise
            except TickertapeError:
                continue  # unready for now, or stopping: not dead

    async def stop(self, grace_s: float) -> None:
        if self._engine is not None:
            await self._engine.stop(grace_s)

    async def _paged_engine(self, backend: Backend) -> tuple[Engine, tuple[int, ...]]:
        loop = asyncio.get_running_loop()

        def send(progress: Progress) -> None:
            with suppress(RuntimeError):  # the server stopped meanwhile, and its loop is closed
                loop.call_soon_threadsafe(self._watcher.loading, self._configure.spec.name, progress)

        def build() -> PagedParts:
            with Pulse(send) as pulse:
                return build_loop(backend, self._configure, pulse.report, self._plugins)

        parts = await _on_daemon_thread(build)
        engine = PagedEngine(parts.loop, parts.plan)
        await engine.start()
        return engine, parts.num_blocks


def _on_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """What `work` returns or raises. Unlike `asyncio.to_thread`, a server that stops does not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=body, name="load", daemon=True).start()
    return future
