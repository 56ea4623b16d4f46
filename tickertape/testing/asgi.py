"""A client for an ASGI app in the same event loop: streams as they come, goes away, or stops reading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message

__all__ = ["Answer", "AsgiClient", "Connection"]

_PATIENCE_S = 60.0


class Answer:
    """A response that has come to its end."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event; comments left out."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == "", "the last event has no end"
        return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]

    @property
    def chunks(self) -> list[Any]:
        """The events as JSON, [DONE] left out."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]


class Connection:
    """A request under way."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any], body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.sends: list[bytes] = []  # one entry per body message
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, as soon as they are sent."""
        message = await self._next()
        assert message["type"] == "http.response.start"
        return message["status"], {name.decode(): value.decode() for name, value in message["headers"]}

    async def part(self) -> bytes | None:
        """The next body message; None at the end."""
        message = await self._next()
        return message["body"] if message.get("more_body") or message["body"] else None

    async def answer(self) -> Answer:
        status, headers = await self.head()
        body = b""
        more = True
        while more:
            message = await self._next()
            body += message["body"]
            more = bool(message.get("more_body"))
        await asyncio.wait_for(self.task, _PATIENCE_S)
        return Answer(status, headers, body)

    def freeze(self) -> None:
        """From now on nothing is read any more: sends do not return."""
        self._reading.clear()

    async def disconnect(self) -> None:
        """Goes away, and waits until the app has ended the request."""
        self._gone.set()
        await asyncio.wait({self.task}, timeout=_PATIENCE_S)

    async def _next(self) -> Message:
        getter = asyncio.ensure_future(self._messages.get())
        await asyncio.wait({getter, self.task}, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not getter.done():
            if self.task.done() and not self._messages.empty():
                return await getter
            getter.cancel()
            if self.task.done():
                self.task.result()
            raise AssertionError("nothing more comes")
        return getter.result()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._reading.wait()
        if self._gone.is_set():  # a server drops what nobody reads
            return
        if message["type"] == "http.response.body":
            self.sends.append(message["body"])
        self._messages.put_nowait(message)


class AsgiClient:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        async with self.open("GET", path, headers=headers) as connection:
            return await connection.answer()

    async def post(
        self, path: str, json: Any = None, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self.open("POST", path, json, body=body, headers=headers) as connection:
            return await connection.answer()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        json_body: Any = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Connection]:
        """`headers` None: those of JSON. The connection is closed at the end, whatever state it is in."""
        given = {"content-type": "application/json"} if headers is None else headers
        payload = json.dumps(json_body).encode() if body is None else body
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        connection = Connection(self._app, scope, payload)
        try:
            yield connection
        finally:
            await connection.disconnect()
            if not connection.task.done():
                connection.task.cancel()
                await asyncio.wait({connection.task})
                raise AssertionError("the app holds on to a connection that is closed")
            if not connection.task.cancelled():
                connection.task.result()
