"""One generating route: a body in, a stream or a whole answer out."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tickertape.api.body import read_json_object
from tickertape.api.connection import while_connected
from tickertape.api.exchange import exchange_of
from tickertape.api.generation import Generation
from tickertape.api.openai.answering import Answering, Asgi, Shape
from tickertape.api.openai.requests import SharedRequest
from tickertape.api.options import WireOptions
from tickertape.api.running import Running
from tickertape.core.errors import InvalidRequest

__all__ = ["Endpoint", "Kind", "Parsed"]

_MAX_NAME_CHARS: Final = 200
_MAX_LISTED: Final = 32
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Parsed(NamedTuple):
    """A body that was found good. `ignored` names what lenient mode left out."""

    request: SharedRequest
    ignored: tuple[str, ...]


class Kind(Shape, Protocol):
    """What chat and completions do differently."""

    def parse(self, body: Mapping[str, Any], *, lenient: bool) -> Parsed: ...
    def start(self, request: Any, *, tenant: str, timeout_s: float | None) -> Coroutine[Any, Any, Generation]: ...


class Endpoint:
    """An ASGI app. The client's going away cancels its request at any time: while its prompt is encoded, queued,
    prefilling or decoding, streamed or not. So does an abort through `running`: what has no status yet gets one of its
    own, a stream ends with an error event."""

    def __init__(self, kind: Kind, options: WireOptions, running: Running) -> None:
        self._kind = kind
        self._options = options
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, options = self._kind, self._options
        request = Request(scope, receive)
        exchange = exchange_of(scope)
        body = await read_json_object(request, max_bytes=options.max_body_bytes, max_depth=options.max_json_depth)
        parsed, ignored = kind.parse(body, lenient=options.lenient)
        exchange.model = parsed.model[:_MAX_NAME_CHARS]
        timeout_s = self._timeout_s(request.headers.get("x-request-timeout-ms"))
        with self._running.entered(exchange.tenant, exchange.request_id) as entry:
            starting = kind.start(parsed, tenant=exchange.tenant, timeout_s=timeout_s)
            generation = await while_connected(receive, starting)
            entry.started(generation)
            try:
                answering = Answering(generation, parsed, kind, exchange, entry, options)
                answer = answering.stream if parsed.stream else answering.whole
                await answer(Asgi(scope, receive, send), {"x-tickertape-ignored": _listed(ignored)} if ignored else {})
            finally:
                await generation.aclose()
                exchange.usage = generation.usage
                exchange.ttft_s = generation.ttft_s

    def _timeout_s(self, asked_ms: str | None) -> float | None:
        """The server's bound on waiting, or the client's if that is shorter."""
        bound = self._options.request_timeout_s
        if asked_ms is None:
            return bound
        if not (asked_ms.isascii() and asked_ms.isdigit() and 0 < len(asked_ms) < 10):
            raise InvalidRequest("The header x-request-timeout-ms must be a whole number of milliseconds")
        asked_s = int(asked_ms) / 1000
        return asked_s if bound is None else min(asked_s, bound)


def _listed(names: tuple[str, ...]) -> str:
    """For a header: the names are the client's, and only harmless ones are repeated."""
    shown = [name if _HARMLESS.fullmatch(name) else "?" for name in names[:_MAX_LISTED]]
    return ", ".join([*shown, "..."] if len(names) > _MAX_LISTED else shown)
