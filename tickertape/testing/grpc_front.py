"""A front's gRPC server on a free loopback port, in the caller's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from tickertape.api.grpc.options import GrpcOptions
from tickertape.api.grpc.server import GrpcServer
from tickertape.api.keys import Keys
from tickertape.testing.front import Front

__all__ = ["grpc_served"]


@asynccontextmanager
async def grpc_served(
    front: Front,
    *,
    options: GrpcOptions | None = None,
    api_keys: Sequence[str] = (),
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    """Its address. The server has ended when the block has."""
    server = GrpcServer(front.service, front.readiness, front.metrics, options=options, keys=Keys(api_keys))
    port = await server.start("127.0.0.1:0", credentials)
    try:
        yield f"localhost:{port}"
    finally:
        await server.stop(0.5)
