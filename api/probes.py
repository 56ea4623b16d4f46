"""/livez /readyz /startupz /health: how the server stands, for those who restart it or send it work. Never a key."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tickertape.api.health import Readiness
from tickertape.api.watchdog import Watchdog

__all__ = ["probe_routes"]

_MAX_RETRY_S: Final = 30


def probe_routes(readiness: Readiness, watchdog: Watchdog) -> list[Route]:
    """livez: 200 while the loop answers, a load gets on and no engine with work stands still. readyz and health: 200
    when requests are served and no engine stands still, else 503 with the reason. startupz: 200 as soon as anybody is
    here to answer it, so that no load, however long, is killed for its length."""

    async def livez(_: Request) -> Response:
        if not readiness.alive:
            return _answer(503, {"status": "stalled", "reason": readiness.reason})
        if readiness.ready and (model := watchdog.stalled()) is not None:
            return _answer(503, {"status": "stalled", "reason": "EngineStalled", "model": model})
        return _answer(200, {"status": "ok"})

    async def readyz(_: Request) -> Response:
        if readiness.ready:
            if (model := watchdog.stalled()) is not None:
                stalled = {"reason": "EngineStalled", "model": model, "eta_s": None}
                return _answer(503, stalled, {"retry-after": str(_MAX_RETRY_S)})
            return _answer(200, {"status": "ok"})
        eta_s = readiness.eta_s
        after_s = min(max(1, math.ceil(eta_s or 1)), _MAX_RETRY_S)
        return _answer(503, {"reason": readiness.reason, "eta_s": eta_s}, {"retry-after": str(after_s)})

    async def startupz(_: Request) -> Response:
        return _answer(200, {"state": readiness.state, "reason": readiness.reason, **readiness.progress})

    return [
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/health", readyz),
        Route("/startupz", startupz),
    ]


def _answer(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
