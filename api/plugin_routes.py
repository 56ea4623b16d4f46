"""GET /v1/plugins, and the routes that plugins serve under /plugins."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tickertape.plugins.listing import list_plugins
from tickertape.plugins.manager import Plugins
from tickertape.plugins.routes import AsgiApp

__all__ = ["plugin_routes"]


def plugin_routes(plugins: Plugins) -> list[BaseRoute]:
    async def listed(_: Request) -> Response:
        return Response(msgspec.json.encode(list_plugins(plugins)), media_type="application/json")

    served: list[BaseRoute] = [
        Route(path, _Asgi(route.app), methods=list(route.methods)) for path, route in plugins.routes.items()
    ]
    return [Route("/v1/plugins", listed, methods=["GET"]), *served]


class _Asgi:
    """An app that the router takes for one, function or not."""

    def __init__(self, app: AsgiApp) -> None:
        self._app: Any = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
