"""The client's end of a request: gone or still there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

__all__ = ["ClientGone", "while_connected"]

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end, unless the client goes away first: then `work` is cancelled and ClientGone raised. The
    body must have been read: `receive` then only has the end of the connection to tell."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        pending = [each for each in (task, watch) if not each.done()]
        for each in pending:
            each.cancel()
        if pending:
            await asyncio.wait(pending)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
