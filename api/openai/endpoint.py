"""One generating route: a body in, a stream or a whole answer out."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickertape.api.body import read_json_object
from tickertape.api.connection import while_connected
from tickertape.api.error_table import public_error, spelling
from tickertape.api.events import Event
from tickertape.api.exchange import Exchange, exchange_of
from tickertape.api.generation import Generation
from tickertape.api.openai.errors import error_event
from tickertape.api.openai.heads import Head
from tickertape.api.openai.requests import SharedRequest
from tickertape.api.options import WireOptions
from tickertape.api.sse import SSE_DONE, EventStream
from tickertape.core.errors import InvalidRequest, TickertapeError

__all__ = ["Chunks", "Endpoint", "Kind", "Parsed"]

_MAX_NAME_CHARS: Final = 200
_MAX_LISTED: Final = 32
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_log = logging.getLogger("tickertape.http")


class Parsed(NamedTuple):
    """A body that was found good. `ignored` names what lenient mode left out."""

    request: SharedRequest
    ignored: tuple[str, ...]


class Chunks(Protocol):
    """Bytes of a stream: before the first event, of events, after the last."""

    def begin(self) -> bytes: ...
    def events(self, events: list[Event]) -> bytes: ...
    def end(self) -> bytes: ...


class Kind(Protocol):
    """What chat and completions do differently."""

    id_prefix: str
    stream_object: str
    whole_object: str

    def parse(self, body: Mapping[str, Any], *, lenient: bool) -> Parsed: ...
    def start(self, request: Any, *, tenant: str, timeout_s: float | None) -> Awaitable[Generation]: ...
    def chunks(self, generation: Generation, head: Head, request: Any) -> Chunks: ...
    def fold(self, generation: Generation, head: Head, request: Any) -> Awaitable[bytes]: ...


class Endpoint:
    """An ASGI app. The client's going away cancels its request at any time: while its prompt is encoded, queued,
    prefilling or decoding, streamed or not."""

    def __init__(self, kind: Kind, options: WireOptions) -> None:
        self._kind = kind
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        exchange = exchange_of(scope)
        options = self._options
        body = await read_json_object(request, max_bytes=options.max_body_bytes, max_depth=options.max_json_depth)
        parsed = self._kind.parse(body, lenient=options.lenient)
        exchange.model = parsed.request.model[:_MAX_NAME_CHARS]
        headers = {"x-tickertape-ignored": _listed(parsed.ignored)} if parsed.ignored else {}
        starting = self._kind.start(
            parsed.request,
            tenant=exchange.tenant,
            timeout_s=self._timeout_s(request.headers.get("x-request-timeout-ms")),
        )
        generation = await while_connected(receive, _awaited(starting))
        try:
            answer = self._stream if parsed.request.stream else self._whole
            await answer(generation, parsed.request, exchange, headers, scope, receive, send)
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

    async def _whole(
        self,
        generation: Generation,
        request: SharedRequest,
        exchange: Exchange,
        headers: dict[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        kind = self._kind
        head = Head.make(kind.id_prefix, kind.whole_object, generation.model, time.time())
        body = await while_connected(receive, _awaited(kind.fold(generation, head, request)))
        await Response(body, headers=headers, media_type="application/json")(scope, receive, send)

    async def _stream(
        self,
        generation: Generation,
        request: SharedRequest,
        exchange: Exchange,
        headers: dict[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        kind, options = self._kind, self._options
        head = Head.make(kind.id_prefix, kind.stream_object, generation.model, time.time())
        # Faults that show before the first token, or soon enough, are still an HTTP status.
        first = asyncio.ensure_future(anext(generation))
        try:
            await while_connected(receive, _settle(first, options.head_delay_s))
            if first.done():
                first.result()
            events = self._events(generation, first, kind.chunks(generation, head, request), exchange)
            exchange.outcome = "cancelled"  # until the stream has come to its end
            try:
                stream = EventStream(
                    events,
                    keep_alive_s=options.keep_alive_s,
                    send_timeout_s=options.send_timeout_s,
                    headers=headers,
                )
                await stream(scope, receive, send)
            finally:
                await events.aclose()
        finally:
            first.cancel()
            await asyncio.wait({first})
            if not first.cancelled():
                first.exception()  # told to the client, or to nobody if that is gone

    async def _events(
        self, generation: Generation, first: asyncio.Future[list[Event]], chunks: Chunks, exchange: Exchange
    ) -> AsyncGenerator[bytes, None]:
        try:
            begin = chunks.begin()
            if not first.done():
                yield begin
                begin = b""
            yield begin + chunks.events(await first)
            async for events in generation:
                yield chunks.events(events)
            exchange.outcome = "ok"
            yield chunks.end() + SSE_DONE
        except Exception as error:
            public = public_error(error)
            if not isinstance(error, TickertapeError):
                _log.error("stream failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
            exchange.outcome = spelling(public).outcome
            yield error_event(public)


def _listed(names: tuple[str, ...]) -> str:
    """For a header: the names are the client's, and only harmless ones are repeated."""
    shown = [name if _HARMLESS.fullmatch(name) else "?" for name in names[:_MAX_LISTED]]
    return ", ".join([*shown, "..."] if len(names) > _MAX_LISTED else shown)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def _settle(first: asyncio.Future[Any], timeout_s: float) -> None:
    await asyncio.wait({first}, timeout=timeout_s)
