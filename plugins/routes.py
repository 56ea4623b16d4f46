"""What `register_routes` takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from msgspec import Struct

__all__ = ["AsgiApp", "PluginRoute"]

AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]


class PluginRoute(Struct, frozen=True, kw_only=True):
    """An ASGI app served at /plugins/PLUGIN + `path`, behind the same keys, errors and access log as every route. What
    it raises before its answer began becomes the client's error answer."""

    path: str
    app: AsgiApp
    methods: tuple[str, ...] = ("GET",)
