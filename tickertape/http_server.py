"""uvicorn on a socket that is bound already, next to whatever else runs on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import uvicorn

from tickertape.http_protocol import BoundedProtocol, HeadLimits

__all__ = ["HttpServer"]

_LAST_WRITES_S = 1


class HttpServer(uvicorn.Server):
    """Serves until `should_exit`. `adopt` are connections that were accepted before, with the bytes they have sent;
    there are none under TLS.

    Signals are the front's business, and so is the drain: by the time that this shuts down no stream is left that had
    a right to go on, so it only lets last writes out.
    """

    def __init__(
        self,
        app: Any,
        *,
        keep_alive_s: float,
        head: HeadLimits,
        adopt: Sequence[tuple[socket.socket, bytes]] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=partial(BoundedProtocol, head),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # uvicorn counts whole seconds by its annotation only; the loop takes any number.
                timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
                timeout_graceful_shutdown=_LAST_WRITES_S,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
        )
        self._adopt = adopt
        self._sockets: list[socket.socket] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Of our own: a server that stops listening closes the sockets it was given.
        self._sockets = [listener.dup() for listener in sockets or ()]
        await super().startup(sockets)
        for connection, received in self._adopt:
            with contextlib.suppress(OSError):  # the client went away meanwhile
                _, protocol = await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
                if received:
                    protocol.data_received(received)

    async def renew(self, tls: ssl.SSLContext) -> None:
        """Connections from now on are made under `tls`; those there are stay as they are. Nobody is turned away: the
        same sockets listen on, and a new context knows no sessions of the one before it."""
        loop = asyncio.get_running_loop()
        former = self.servers
        self.servers = [
            await loop.create_server(self._protocol, sock=listener.dup(), ssl=tls, backlog=self.config.backlog)
            for listener in self._sockets
        ]
        for server in former:
            server.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._sockets:
            listener.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol
