"""Over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx
import msgspec

from tickertape.client.asks import Ask
from tickertape.client.errors import ServerError
from tickertape.client.http_bodies import answer_of, body_of, deltas_of, path_of
from tickertape.client.records import Answer, Delta

__all__ = ["HttpWire"]


class HttpWire:
    """Raises httpx.TransportError when no server answers."""

    def __init__(self, url: str, *, api_key: str | None, transport: httpx.AsyncBaseTransport | None) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=None, transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def whole(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> Answer:
        headers = _headers(timeout_s, request_id)
        answer = await self._http.post(path_of(ask), json=body_of(ask), headers=headers)
        _check(answer.status_code, answer.content, answer.headers)
        return answer_of(answer.json(), ask)

    async def deltas(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> AsyncGenerator[Delta, None]:
        body = {**body_of(ask), "stream": True, "stream_options": {"include_usage": True}}
        headers = _headers(timeout_s, request_id)
        async with self._http.stream("POST", path_of(ask), json=body, headers=headers) as answer:
            if answer.status_code != 200:
                _check(answer.status_code, await answer.aread(), answer.headers)
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = msgspec.json.decode(data)
                if "error" in event:
                    raise _server_error(500, event["error"], {})
                for delta in deltas_of(event, ask):
                    yield delta

    async def models(self) -> tuple[str, ...]:
        answer = await self._http.get("/v1/models")
        _check(answer.status_code, answer.content, answer.headers)
        return tuple(model["id"] for model in answer.json()["data"])


def _headers(timeout_s: float | None, request_id: str | None) -> dict[str, str]:
    headers = {} if request_id is None else {"x-request-id": request_id}
    if timeout_s is not None:
        headers["x-request-timeout-ms"] = str(max(1, round(timeout_s * 1000)))
    return headers


def _check(status: int, body: bytes, headers: Mapping[str, str]) -> None:
    if status == 200:
        return
    try:
        fault = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        fault = {"message": body[:200].decode(errors="replace"), "code": "unknown", "param": None}
    raise _server_error(status, fault, headers)


def _server_error(status: int, fault: Mapping[str, Any], headers: Mapping[str, str]) -> ServerError:
    after_ms = headers.get("retry-after-ms")
    return ServerError(
        fault["message"],
        code=fault["code"],
        status=status,
        param=fault["param"],
        retry_after_s=None if after_ms is None else int(after_ms) / 1000,
    )
