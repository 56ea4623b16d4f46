"""The server behind a model, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct

from tickertape.plugins import EngineDead, Overloaded, RowError, StartupError, Unavailable
from tickertape.plugins.backends.remote.dialects import DIALECTS, Dialect
from tickertape.plugins.backends.remote.events import events
from tickertape.plugins.backends.remote.faults import refusal_of
from tickertape.plugins.backends.remote.figures import Figures, read_figures
from tickertape.plugins.backends.remote.options import RemoteOptions

__all__ = ["Identity", "Upstream"]

_IDLE_S: Final = 4.0  # below the 5 s after which uvicorn closes what is idle
_MAX_ERROR_BYTES: Final = 64 << 10
_MAX_FIGURES_BYTES: Final = 4 << 20


class Identity(Struct, frozen=True):
    """What the server is, and what it calls the model. `max_model_len` 0: it does not say."""

    dialect: Dialect
    model: str
    max_model_len: int


class _Model(Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(Struct):
    data: list[_Model]


class Upstream:
    """Belongs to one asyncio loop."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        self._url = url
        self._options = options
        headers = {"accept-encoding": "identity"}
        if options.api_key is not None:
            headers["authorization"] = f"Bearer {options.api_key}"
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(options.silence_s, connect=options.connect_s, pool=options.connect_s),
            limits=httpx.Limits(
                max_connections=options.max_connections, max_keepalive_connections=64, keepalive_expiry=_IDLE_S
            ),
        )

    async def identify(self, name: str) -> Identity:
        """Finds the model that is called `name` here. Raises Unavailable when nobody answers, StartupError when that is
        no server of ours to talk to, or has no such model."""
        options = self._options
        status, body = await self._get("/v1/models", _MAX_FIGURES_BYTES)
        if status != 200:
            error = refusal_of(status, {}, body)
            if isinstance(error, Unavailable | Overloaded):
                raise error
            raise StartupError(f"{self._url} does not list its models: {error.message}", code="BadUpstream")
        try:
            served = {model.id: model for model in msgspec.json.decode(body, type=_Models).data}
        except msgspec.DecodeError as error:
            raise StartupError(f"{self._url} does not list its models: {error}", code="BadUpstream") from error
        wanted = options.model or (name if name in served else next(iter(served)) if len(served) == 1 else name)
        if wanted not in served:
            raise StartupError(
                f"{self._url} has no model {wanted!r}; it has: {', '.join(served) or 'none'}", code="BadUpstream"
            )
        found = served[wanted]
        spoken = options.dialect or found.owned_by
        if spoken not in DIALECTS:
            raise StartupError(
                f"{self._url} does not say what it is; name it: --backend-option dialect={'|'.join(DIALECTS)}",
                code="BadUpstream",
            )
        return Identity(DIALECTS[spoken], wanted, found.max_model_len or 0)

    async def health(self) -> None:
        """Raises Unavailable."""
        status, _ = await self._get("/health", _MAX_ERROR_BYTES)
        if status != 200:
            raise Unavailable(f"the server behind this model is not ready: its health is {status}", code="restarting")

    async def figures(self) -> Figures:
        """Raises Unavailable."""
        status, body = await self._get("/metrics", _MAX_FIGURES_BYTES)
        return read_figures(body.decode(errors="replace")) if status == 200 else Figures()

    async def ask(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """JSON texts: the events of a stream, or one whole answer. Reads no further than it is asked to, so that a slow
        reader slows the server down; closing it closes the connection, which ends the request there. Raises errors of
        the tree: Unavailable while nothing has come, EngineDead once something had."""
        begun = False
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                begun = True
                if response.status_code != 200:
                    raise refusal_of(response.status_code, response.headers, await self._read(response))
                if not body["stream"]:
                    yield await self._read(response, self._options.max_event_bytes)
                    return
                found = events(response.aiter_raw(), self._options.max_event_bytes)
                async with aclosing(found):  # type: ignore[type-var]
                    async for event in found:
                        yield event
        except httpx.PoolTimeout as error:
            raise Overloaded("too many streams to the server behind this model", retry_after_s=1.0) from error
        except httpx.TransportError as error:
            raise self._lost(error) if begun else self._unreachable(error) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(self, path: str, max_bytes: int) -> tuple[int, bytes]:
        try:
            async with self._client.stream("GET", path, timeout=self._options.health_s) as response:
                return response.status_code, await self._read(response, max_bytes)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _read(self, response: httpx.Response, max_bytes: int = _MAX_ERROR_BYTES) -> bytes:
        read = bytearray()
        async for part in response.aiter_bytes():
            read += part
            if len(read) > max_bytes:
                raise RowError(f"the server behind this model answered with more than {max_bytes} bytes")
        return bytes(read)

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        return Unavailable(
            f"the server behind this model does not answer: {type(error).__name__}",
            code="restarting",
            retry_after_s=1.0,
        )

    def _lost(self, error: httpx.TransportError) -> EngineDead:
        return EngineDead(f"the server behind this model broke off its answer: {type(error).__name__}")
