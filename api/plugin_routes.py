"""GET /v1/plugins, and the routes that plugins serve under /plugins."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tickertape.core.backend import Backend, Capabilities
from tickertape.plugins.hookspecs import API
from tickertape.plugins.manager import PluginRecord, Plugins
from tickertape.plugins.routes import AsgiApp

__all__ = ["PluginList", "list_plugins", "plugin_routes"]


class _Backend(Struct):
    name: str
    kind: str
    summary: str
    capabilities: Capabilities
    plugin: str


class _Plugin(Struct):
    """A plugin's record, and how often it failed since it was loaded."""

    name: str
    distribution: str
    version: str
    state: str
    api: str | None
    hooks: tuple[str, ...]
    registered: dict[str, tuple[str, ...]]
    stage: str
    error: str
    num_faults: int


class PluginList(Struct):
    """What `GET /v1/plugins` and `tickertape plugins --json` say."""

    api: str
    data: list[_Plugin]
    backends: list[_Backend]
    object: str = "list"


def list_plugins(plugins: Plugins) -> PluginList:
    """How the plugins of this process fared, and the backends they brought."""
    owners = {name: record.name for record in plugins.records for name in record.registered.get("backends", ())}
    return PluginList(
        api=_dotted(API),
        data=[_describe(record, plugins.faults.counts.get(record.name, 0)) for record in plugins.records],
        backends=[_describe_backend(backend, owners[name]) for name, backend in plugins.backends.items()],
    )


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


def _describe(record: PluginRecord, num_faults: int) -> _Plugin:
    return _Plugin(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        state=record.state,
        api=None if record.api is None else _dotted(record.api),
        hooks=record.hooks,
        registered=record.registered,
        stage=record.stage,
        error=record.error,
        num_faults=num_faults,
    )


def _describe_backend(backend: Backend, plugin: str) -> _Backend:
    return _Backend(backend.name, backend.kind, backend.summary, backend.capabilities, plugin)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
