"""Several requests of one stream, answered side by side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from tickertape.api.error_table import public_error
from tickertape.core.errors import TickertapeError

__all__ = ["interleaved"]

_MAX_RUNNING: Final = 256
_log = logging.getLogger("tickertape.grpc")


async def interleaved(
    requests: AsyncIterator[Any],
    answers: Callable[[Any], AsyncGenerator[Any, None]],
    fault: Callable[[Any, TickertapeError], Any],
) -> AsyncGenerator[Any, None]:
    """The answers of all requests, each request's in order. One answer is held at a time: who waits to hand theirs over
    computes no further, so a slow reader holds everything up and grows nothing. Beyond so many under way the next
    request is not read. Closing it ends them all."""
    handed: asyncio.Queue[Any] = asyncio.Queue(1)
    room = asyncio.Semaphore(_MAX_RUNNING)
    over = object()
    closing = False

    async def run(request: Any) -> None:
        try:
            async with aclosing(answers(request)) as given:
                async for answer in given:
                    await handed.put(answer)
        except Exception as error:
            if not isinstance(error, TickertapeError):
                _log.error("request of a stream failed", exc_info=error)
            await handed.put(fault(request, public_error(error)))
        finally:
            room.release()

    async def read() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await room.acquire()
                    group.create_task(run(request))
        finally:
            if not closing:
                await handed.put(over)

    reading = asyncio.create_task(read())
    try:
        while (answer := await handed.get()) is not over:
            yield answer
        await reading
    finally:
        closing = True
        reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            reading.exception()
