"""The HTTP side as one ASGI app."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from tickertape import __version__
from tickertape.api.door import Door
from tickertape.api.edge import Edge
from tickertape.api.health import Readiness
from tickertape.api.keys import Keys
from tickertape.api.metrics import CONTENT_TYPE, Metrics
from tickertape.api.models import Models
from tickertape.api.openai.routes import openai_routes
from tickertape.api.openapi import openapi_route
from tickertape.api.options import WireOptions
from tickertape.api.plugin_routes import plugin_routes
from tickertape.api.probes import probe_routes
from tickertape.api.service import Service
from tickertape.api.surroundings import surrounded
from tickertape.api.watchdog import Watchdog
from tickertape.plugins.manager import Plugins

__all__ = ["build_app"]


def build_app(
    service: Service,
    models: Models,
    readiness: Readiness,
    metrics: Metrics,
    *,
    options: WireOptions | None = None,
    keys: Keys | None = None,
    plugins: Plugins | None = None,
    watchdog: Watchdog | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """Probes, metrics, the OpenAI routes and those of plugins. Everything is created and used on one event loop;
    `keys` may be replaced meanwhile. `watchdog` is the caller's to run."""
    chosen = WireOptions() if options is None else options
    loaded = Plugins.none() if plugins is None else plugins
    metrics.watch(loaded)

    async def scrape(_: Request) -> Response:
        return Response(metrics.scrape(), headers={"content-type": CONTENT_TYPE})

    routes = Router(
        [
            *probe_routes(readiness, watchdog or Watchdog(models, service.admission, clock)),
            Route("/metrics", scrape),
            *openai_routes(service, models, chosen),
            openapi_route(__version__, models),
            *plugin_routes(loaded),
        ],
        redirect_slashes=False,
    )
    door = Door(Keys() if keys is None else keys, loaded.authenticators)
    edge = Edge(routes, door=door, metrics=metrics, observers=loaded.observers, clock=clock)
    return surrounded(edge, chosen)
