"""A worker's life over an engine that brings its own scheduler: its asyncio loop, and emits once per tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from tickertape.core.backend import Backend
from tickertape.core.errors import EngineDead, RowError, TickertapeError
from tickertape.core.messages import Configure, Emit, Failure, Ready, ToWorker
from tickertape.core.ports import Engine
from tickertape.core.request import Request, TokenDelta
from tickertape.engine_room import start_engine
from tickertape.link import Link

__all__ = ["EngineWorker"]

_HEALTH_S: Final = 1.0


class EngineWorker:
    """Takes requests from the reader's thread; everything else happens on the loop that `run` is on. Sending blocks
    the loop while the front does not read: that is the backpressure."""

    def __init__(self, configure: Configure, link: Link[ToWorker]) -> None:
        self._configure = configure
        self._link = link
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._deltas: list[tuple[int, TokenDelta]] = []
        self._failures: list[tuple[int, Failure]] = []
        self._stopping = asyncio.Event()

    async def run(self, backend: Backend, feed: Callable[[EngineWorker], None]) -> None:
        """Starts the engine, serves until `stop`. Raises what keeps the engine from starting or going on."""
        self._loop = asyncio.get_running_loop()
        self._engine = await start_engine(backend, self._configure)
        feed(self)
        self._link.send(Ready(self._configure.epoch, self._engine.plan(), (), self._engine.stats()))
        try:
            await self._watch(self._engine)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._engine.stop(0.0)

    def submit(self, request: Request) -> None:
        self._post(self._submit, request)

    def abort(self, request_id: int) -> None:
        self._post(self._abort, request_id)

    def stop(self) -> None:
        self._post(self._stopping.set)

    def _post(self, call: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon_threadsafe(call, *args)

    async def _watch(self, engine: Engine) -> None:
        """Until `stop`: asks for the engine's health, and lets the front know how it stands."""
        told = None
        while not self._stopping.is_set():
            try:
                await engine.health()
            except EngineDead:
                raise
            except TickertapeError:
                pass  # unready for now is not dead
            stats = engine.stats()
            # With requests open it is told again and again: silence means that this worker stands still.
            if stats != told or self._tasks:
                told = stats
                self._flush()
            try:
                await asyncio.wait_for(self._stopping.wait(), _HEALTH_S)
            except TimeoutError:
                continue

    def _submit(self, request: Request) -> None:
        self._tasks[request.id] = self._loop.create_task(self._generate(request))

    def _abort(self, request_id: int) -> None:
        if task := self._tasks.get(request_id):
            task.cancel()

    async def _generate(self, request: Request) -> None:
        try:
            async with aclosing(self._engine.generate(request)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    self._schedule_flush()
                    self._deltas.append((request.id, delta))
        except TickertapeError as error:
            self._fail(request.id, error)
        except Exception as error:
            # A stranger's engine may raise anything; it is this request's fault until the engine says it is dead.
            self._fail(request.id, RowError(f"{type(error).__name__}: {' '.join(str(error).split())}"))
        finally:
            del self._tasks[request.id]

    def _fail(self, request_id: int, error: TickertapeError) -> None:
        self._schedule_flush()
        self._failures.append((request_id, Failure.of(error)))

    def _schedule_flush(self) -> None:
        if not self._deltas and not self._failures:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        deltas, self._deltas = self._deltas, []
        failures, self._failures = self._failures, []
        with suppress(OSError):  # the front is gone: the reader's thread hears of it and stops us
            self._link.send(Emit(self._configure.epoch, deltas, failures, self._engine.stats()))
