"""gRPC in the front: brought in behind HTTP's back, on the port that boot holds."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from tickertape import __version__
from tickertape.api.health import Readiness
from tickertape.api.keys import Keys
from tickertape.api.metrics import Metrics
from tickertape.api.service import Service
from tickertape.core.errors import StartupError
from tickertape.pieces import grpc_options, wire_options
from tickertape.plugins.manager import Plugins
from tickertape.settings import Settings
from tickertape.tls import tls_files

if TYPE_CHECKING:  # grpc takes a while to import: HTTP must not wait for it
    import grpc

    from tickertape.api.grpc.server import GrpcServer

__all__ = ["GrpcFront"]

_LAST_WRITES_S: Final = 1.0

_log = logging.getLogger(__name__)


class GrpcFront:
    """Belongs to the front's loop. `reserved` is a socket that is bound to the port and does not listen."""

    def __init__(self, settings: Settings, reserved: socket.socket) -> None:
        self._settings = settings
        self._reserved = reserved
        self._server: GrpcServer | None = None

    async def start(
        self, service: Service, readiness: Readiness, metrics: Metrics, *, keys: Keys, plugins: Plugins
    ) -> None:
        """Returns when calls are taken. Raises StartupError when they cannot be."""
        await asyncio.to_thread(_import)
        from tickertape.api.grpc.server import GrpcServer

        server = GrpcServer(
            service,
            readiness,
            metrics,
            options=grpc_options(self._settings),
            wire=wire_options(self._settings),
            keys=keys,
            plugins=plugins,
            version=__version__,
        )
        host, port = self._reserved.getsockname()[:2]
        try:
            await server.start(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", self._credentials())
        except OSError as error:
            raise StartupError(str(error), code="BindFailed") from error
        self._reserved.close()  # the server has the port now
        self._server = server
        _log.info("gRPC listens on port %d", port)

    async def stop(self) -> None:
        """The drain is over when this is called, so that it only lets last writes out."""
        self._reserved.close()
        if self._server is not None:
            await self._server.stop(_LAST_WRITES_S)

    def _credentials(self) -> grpc.ServerCredentials | None:
        files = tls_files(self._settings)
        if files is None:
            return None
        from tickertape.grpc_tls import credentials

        return credentials(files)


def _import() -> None:
    import tickertape.api.grpc.server  # noqa: F401
