"""An ASGI app behind uvicorn on a free loopback port, in the caller's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

__all__ = ["served"]


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[int]:
    """The port. The server has ended when the block has."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
            if serving.done():
                serving.result()
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listener.close()
