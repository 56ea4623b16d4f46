"""How clients get in: API keys and TLS, and both anew when their files change."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from starlette.types import ASGIApp

from tickertape.api.keys import Keys
from tickertape.core.errors import StartupError
from tickertape.http_server import HttpServer
from tickertape.key_file import read_key_file, read_keys
from tickertape.pieces import head_limits
from tickertape.reloading import Reloader
from tickertape.settings import Settings
from tickertape.tls import TlsFiles, tls_context, tls_files

__all__ = ["Entrance"]


class Entrance:
    """Raises StartupError, codes BadKeyFile and BadTls. Belongs to the front's loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tls = tls_files(settings)
        self._context = None if self._tls is None else tls_context(self._tls)
        try:
            self.keys = Keys(read_keys(settings))
        except ValueError as error:
            raise StartupError(f"the API keys cannot be used: {error}", code="BadKeyFile") from error

    def server(self, app: ASGIApp, adopt: Sequence[tuple[socket.socket, bytes]]) -> HttpServer:
        settings = self._settings
        return HttpServer(
            app, keep_alive_s=settings.http_keep_alive_s, head=head_limits(settings), adopt=adopt, tls=self._context
        )

    async def watch(self, server: HttpServer) -> None:
        """Reads the files again when they change, and on SIGHUP. Until cancelled; ends at once when there are none."""
        reloader = Reloader()
        if (file := self._settings.api_keys) is not None:
            reloader.watch(f"the file of API keys {file}", (file,), lambda: self._renew_keys(file))
        if (files := self._tls) is not None:
            reloader.watch("TLS certificates", files.paths, lambda: self._renew_tls(files, server))
        if not reloader:
            return
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            loop.add_signal_handler(signal.SIGHUP, reloader.look)
            stack.callback(loop.remove_signal_handler, signal.SIGHUP)
            await reloader.run()

    async def _renew_keys(self, file: Path) -> None:
        self.keys.replace(read_key_file(file))

    async def _renew_tls(self, files: TlsFiles, server: HttpServer) -> None:
        await server.renew(tls_context(files))
