"""Several engine streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tickertape.core.errors import EngineFault
from tickertape.core.ports import Engine
from tickertape.core.request import Request, TokenDelta

__all__ = ["Fanout"]

Delta = tuple[int, TokenDelta]


class Fanout:
    """Runs the requests of one call. Used once, by one task.

    `batches` yields what has come since it was last asked, as (index of the request, delta), so that what one engine
    step gave to several requests leaves together. The first request that fails ends all: its error is raised and the
    others are cancelled. Closing the generator cancels every request.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._requests = requests
        self._stopped: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: list[Delta] = []
        self._wake = asyncio.Event()

    def stop(self, index: int) -> None:
        """Cancels one request: its text is complete."""
        self._stopped.add(index)
        if self._tasks:
            self._tasks[index].cancel()

    def is_stopped(self, index: int) -> bool:
        return index in self._stopped

    async def batches(self) -> AsyncGenerator[list[Delta], None]:
        if len(self._requests) == 1:
            # By far the most common, and half the cost without a task in between.
            async with aclosing(_whole(self._engine, self._requests[0])) as deltas:
                async for delta in deltas:
                    yield [(0, delta)]
                    if self._stopped:
                        return
            return
        self._tasks = [asyncio.ensure_future(self._pump(n, request)) for n, request in enumerate(self._requests)]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                done = all(task.done() for task in self._tasks)
                ready, self._ready = self._ready, []
                ready = [(n, delta) for n, delta in ready if n not in self._stopped]
                if ready:
                    yield ready
                self._raise_failure()
                if done:
                    return
                await self._wake.wait()
                self._wake.clear()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _pump(self, index: int, request: Request) -> None:
        async with aclosing(_whole(self._engine, request)) as deltas:
            async for delta in deltas:
                self._ready.append((index, delta))
                self._wake.set()

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error


async def _whole(engine: Engine, request: Request) -> AsyncGenerator[TokenDelta, None]:
    """The engine's stream, or EngineFault when it ends without saying why: a silent end must not look like a stop."""
    stream = engine.generate(request)
    try:
        async for delta in stream:
            yield delta
            if delta.finish is not None:
                return
    finally:
        aclose = getattr(stream, "aclose", None)  # an AsyncIterator need not be a generator
        if aclose is not None:
            await aclose()
    raise EngineFault("The engine ended the request without a reason", code="engine_error")
