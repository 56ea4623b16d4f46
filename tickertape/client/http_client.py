"""A client over HTTP."""

from __future__ import annotations

import httpx

from tickertape.client.client import Client
from tickertape.client.http_wire import HttpWire

__all__ = ["HttpClient"]


class HttpClient(Client):
    """`url`: `http://host:port`. `timeout_s` of a request bounds the wait for its first token. Raises also
    httpx.TransportError, when no server answers."""

    def __init__(
        self, url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(HttpWire(url, api_key=api_key, transport=transport))
