"""Server-sent events: ready bytes out, one write per step.

A small subclass of sse-starlette's response. What differs from it, on purpose:
- Events come as finished bytes; nothing is encoded or logged per event, and no cancel scope is made per send: the one
  timer of a stream watches over its sends.
- The ping is ours: a comment, and only after `keep_alive_s` of silence.
- Its shutdown watcher is never started. Draining starts on the signal, in the front door, and lets streams finish.
- `Cache-Control: no-cache`, as OpenAI sends it, and no `Connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

import anyio
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message, Send

__all__ = ["SSE_DONE", "EventStream", "SendTimeoutError"]

SSE_DONE: Final = b"data: [DONE]\n\n"
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_HEADERS: Final = {"cache-control": "no-cache"}


class EventStream(EventSourceResponse):
    """Sends what `events` yields, each item in one write, until it ends or the client is gone.

    A client that takes nothing for `send_timeout_s` is gone, also while the stream has nothing but keep-alive comments
    for it: SendTimeoutError ends the response. `events` is cancelled then; closing it is the caller's.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        keep_alive_s: float,
        send_timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            events, headers={**_HEADERS, **(headers or {})}, ping=keep_alive_s, send_timeout=send_timeout_s, sep="\n"
        )
        del self.headers["connection"]  # the server's to say, and wrong under HTTP/2
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._send_timeout_s = send_timeout_s
        self._sending_since: float | None = None
        self._last_sent = 0.0

    async def _stream_response(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._sending_since = clock()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last_sent, self._sending_since = clock(), None
        async for data in self._events:
            if not data:
                continue
            self._sending_since = clock()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent, self._sending_since = self._sending_since, None
        async with self._send_lock:  # a comment may be on its way; none may follow the end
            self.active = False
            self._sending_since = clock()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        """Keep-alive and send timeout, in one timer."""
        clock = asyncio.get_running_loop().time
        comment: Message = {"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True}
        self._last_sent = clock()
        while True:
            now = clock()
            since = self._sending_since
            if since is not None:
                if now - since >= self._send_timeout_s:
                    raise SendTimeoutError
                wait_s = since + self._send_timeout_s - now
            elif now - self._last_sent < self._keep_alive_s:
                wait_s = self._last_sent + self._keep_alive_s - now
            else:
                async with self._send_lock:
                    if self.active:
                        await self._send_with_timeout(send, comment)
                self._last_sent = clock()
                continue
            # A send that starts meanwhile is looked at in time: no sleep is longer than the timeout.
            await anyio.sleep(min(wait_s, self._send_timeout_s / 4) + 0.001)

    async def _listen_for_exit_signal_with_grace(self) -> None:
        await anyio.sleep_forever()
