"""The outermost layer of the HTTP side: request ids, keys, errors of every kind, metrics and the access line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tickertape.api.connection import ClientGone
from tickertape.api.door import Door
from tickertape.api.error_table import public_error, retry_headers, spelling
from tickertape.api.exchange import Exchange, request_id_from
from tickertape.api.logs import log_access
from tickertape.api.metrics import Metrics
from tickertape.api.openai.errors import error_body
from tickertape.api.sse import SendTimeoutError
from tickertape.core.errors import InvalidRequest, RouteNotFound, TickertapeError
from tickertape.plugins.observers import Observers

__all__ = ["OPEN_PATHS", "QUIET_PATHS", "Edge", "error_response"]

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/startupz", "/health"})
"""Answered without a key."""

QUIET_PATHS: Final = OPEN_PATHS | {"/metrics"}
"""Not counted, and logged at level debug only."""

_STATUS_CLIENT_GONE: Final = 499
_MAX_PATH_CHARS: Final = 200
_MAX_CLIENT_CHARS: Final = 64
_log = logging.getLogger("tickertape.http")


class Edge:
    """An ASGI app around the routes. Whatever they raise before their answer began becomes an error answer; what is
    not of the error tree is logged, once, with the request id, and shows nothing of itself."""

    def __init__(
        self, app: ASGIApp, *, door: Door, metrics: Metrics, observers: Observers, clock: Callable[[], float]
    ) -> None:
        self._app = app
        self._door = door
        self._observers = observers
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(
            request_id=request_id_from(_header(scope, b"x-request-id")),
            method=scope["method"],
            path=scope["path"][:_MAX_PATH_CHARS],
            client=_client(scope),
            started=self._clock(),
        )
        exchange.attach(scope)
        scope["app"] = self  # Starlette's router raises for an app, and answers in plain text without one
        quiet = exchange.path in QUIET_PATHS
        marked = _mark(exchange, send)
        try:
            try:
                if exchange.path not in OPEN_PATHS:
                    exchange.tenant = await self._door.admit(scope)
                await self._app(scope, receive, marked)
            except (ClientGone, SendTimeoutError):
                exchange.outcome = "cancelled"
                exchange.status = exchange.status or _STATUS_CLIENT_GONE
            except Exception as error:
                await self._answer(error, exchange, scope, receive, marked)
        except asyncio.CancelledError:
            exchange.outcome = "cancelled"
            raise
        finally:
            duration_s = self._clock() - exchange.started
            log_access(exchange, duration_s, quiet=quiet)
            if not quiet:
                self._metrics.request(exchange.model, exchange.outcome)
                if self._observers:
                    self._observers(exchange.event(duration_s))

    async def _answer(self, error: Exception, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        known = _of_starlette(error) if isinstance(error, HTTPException) else error
        if not isinstance(known, TickertapeError):
            _log.error("request failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
        public = public_error(known)
        exchange.outcome = spelling(public).outcome
        if exchange.status is None:
            status = error.status_code if isinstance(error, HTTPException) else None
            headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
            await error_response(public, status=status, headers=headers)(scope, receive, send)


def error_response(
    error: TickertapeError, *, status: int | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An error as the OpenAI wire spells it. `status` overrides the table's."""
    return Response(
        error_body(error),
        status_code=spelling(error).status if status is None else status,
        headers={**(headers or {}), **retry_headers(error)},
        media_type="application/json",
    )


def _of_starlette(error: HTTPException) -> TickertapeError:
    """The router's own refusals."""
    if error.status_code == 405:
        return InvalidRequest("This route does not take that method", code="method_not_allowed")
    return RouteNotFound("There is no such route")


def _mark(exchange: Exchange, send: Send) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            headers: list[Any] = [*message["headers"], (b"x-request-id", exchange.request_id.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return marked


def _client(scope: Scope) -> str:
    """Whose request it is: the peer's address, or what a trusted proxy says."""
    client = scope.get("client")
    return str(client[0])[:_MAX_CLIENT_CHARS] if client else ""


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
