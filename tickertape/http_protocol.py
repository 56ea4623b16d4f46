"""uvicorn's HTTP/1.1 connection with bounds on what comes before a body."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tickertape.api.openai.errors import error_body
from tickertape.core.errors import DeadlineExceeded, InvalidRequest, RequestTooLarge, TickertapeError

__all__ = ["BoundedProtocol", "HeadLimits"]

_LINGER_S: Final = 2.0


class HeadLimits(Struct, frozen=True, kw_only=True):
    """Of one request: its target and headers together, the number of these, and how long they may take to come."""

    max_bytes: int = 64 << 10
    max_headers: int = 128
    timeout_s: float = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Answers a head that is too large with 431, one that never ends with 408, what is no HTTP with 400, and closes
    the connection. The parser gathers the parts of a header before it tells of it, so the bytes are counted as they
    come: those since it last got past a head, or to some of a body. Trailers and chunk extensions count the same."""

    def __init__(self, limits: HeadLimits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limits = limits
        self._num_unparsed_bytes = 0
        self._got_on = False
        self._in_head = False
        self._late: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn counts idle time after the first request only.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unsupported_upgrade_warning(self) -> None:
        """A client that asks for another protocol is answered in this one, as HTTP has it; that is no event to log, and
        uvicorn's advice to install a library no help."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._cancel_late()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._got_on = False
        super().data_received(data)
        self._num_unparsed_bytes = 0 if self._got_on else self._num_unparsed_bytes + len(data)
        if self._num_unparsed_bytes > self._limits.max_bytes:
            self._refuse(*self._too_large())
        elif self._in_head and self._late is None and not self._refused:
            self._late = self.loop.call_later(self._limits.timeout_s, self._time_out)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._got_on = True
        self._in_head = False
        self._cancel_late()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.max_bytes or len(self.headers) > self._limits.max_headers:
            self._refuse(*self._too_large())
            raise ValueError("the head is too large")  # stops the parser
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._got_on = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, InvalidRequest("This is no HTTP/1.1 request", code="invalid_http"))

    def _too_large(self) -> tuple[int, TickertapeError]:
        limits = self._limits
        message = f"The head has more than {limits.max_headers} headers or {limits.max_bytes} bytes, the limits"
        return 431, RequestTooLarge(message, code="headers_too_large")

    def _time_out(self) -> None:
        self._refuse(408, DeadlineExceeded("The request's head did not come to its end", code="timeout"))

    def _refuse(self, status: int, error: TickertapeError) -> None:
        if self._refused:
            return
        self._refused = True
        self._in_head = False
        self._cancel_late()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of the answer to an earlier request
            return
        body = error_body(error)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        # Closing while bytes are unread resets the connection, and the client may lose the answer.
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _cancel_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
