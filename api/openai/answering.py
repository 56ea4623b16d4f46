"""A request whose generation has begun, until its answer has gone out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickertape.api.connection import while_connected
from tickertape.api.error_table import public_error, spelling
from tickertape.api.events import Event
from tickertape.api.exchange import Exchange
from tickertape.api.generation import Generation
from tickertape.api.openai.errors import error_event
from tickertape.api.openai.heads import Head
from tickertape.api.options import WireOptions
from tickertape.api.running import Entry
from tickertape.api.sse import SSE_DONE, EventStream
from tickertape.core.errors import TickertapeError

__all__ = ["Answering", "Asgi", "Chunks", "Shape"]

_log = logging.getLogger("tickertape.http")


class Asgi(NamedTuple):
    """The three arguments of an ASGI app."""

    scope: Scope
    receive: Receive
    send: Send


class Chunks(Protocol):
    """Bytes of a stream: before the first event, of events, after the last."""

    def begin(self) -> bytes: ...
    def events(self, events: list[Event]) -> bytes: ...
    def end(self) -> bytes: ...


class Shape(Protocol):
    """How a route spells its answers."""

    id_prefix: str
    stream_object: str
    whole_object: str

    def chunks(self, generation: Generation, head: Head, request: Any) -> Chunks: ...
    def fold(self, generation: Generation, head: Head, request: Any) -> Awaitable[bytes]: ...


class Answering:
    """Closing the generation is left to the caller; it may still run when an answer ends with an exception."""

    def __init__(
        self,
        generation: Generation,
        request: Any,
        shape: Shape,
        exchange: Exchange,
        entry: Entry,
        options: WireOptions,
    ) -> None:
        self._generation = generation
        self._request = request
        self._shape = shape
        self._exchange = exchange
        self._entry = entry
        self._options = options

    async def whole(self, asgi: Asgi, headers: dict[str, str]) -> None:
        """Raises ClientGone, and what the generation raises."""
        folding = self._shape.fold(self._generation, self._head(self._shape.whole_object), self._request)
        body = await while_connected(asgi.receive, _awaited(folding))
        await Response(body, headers=headers, media_type="application/json")(*asgi)

    async def stream(self, asgi: Asgi, headers: dict[str, str]) -> None:
        """Raises ClientGone, SendTimeoutError, and what the generation raises before its first token, or before
        `head_delay_s` have passed; a later fault is told in the stream."""
        options = self._options
        first = asyncio.ensure_future(anext(self._generation))
        try:
            await while_connected(asgi.receive, _settle(first, options.head_delay_s))
            if first.done():
                first.result()
            events = self._events(first)
            self._exchange.outcome = "cancelled"  # until the stream has come to its end
            try:
                response = EventStream(
                    events,
                    keep_alive_s=options.keep_alive_s,
                    send_timeout_s=options.send_timeout_s,
                    headers=headers,
                )
                await response(*asgi)
            finally:
                await events.aclose()
        finally:
            first.cancel()
            await asyncio.wait({first})
            if not first.cancelled():
                first.exception()  # told to the client, or to nobody if that is gone

    async def _events(self, first: asyncio.Future[list[Event]]) -> AsyncGenerator[bytes, None]:
        exchange, shape = self._exchange, self._shape
        try:
            chunks = shape.chunks(self._generation, self._head(shape.stream_object), self._request)
            begin = chunks.begin()
            if not first.done():
                yield begin
                begin = b""
            yield begin + chunks.events(await first)
            async for events in self._generation:
                yield chunks.events(events)
            exchange.outcome = "ok"
            yield chunks.end() + SSE_DONE
        except Exception as error:
            public = public_error(error)
            if not isinstance(error, TickertapeError):
                _log.error("stream failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
            exchange.outcome = spelling(public).outcome
            yield error_event(public)

    def _head(self, kind: str) -> Head:
        head = Head.make(self._shape.id_prefix, kind, self._generation.model, time.time())
        self._entry.called(head.id)
        return head


async def _awaited(work: Awaitable[bytes]) -> bytes:
    return await work


async def _settle(first: asyncio.Future[Any], timeout_s: float) -> None:
    await asyncio.wait({first}, timeout=timeout_s)
