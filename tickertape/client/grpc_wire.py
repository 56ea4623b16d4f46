"""Over gRPC."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from tickertape.api.proto.tickertape.v1.token_stream_pb2 import AbortRequest, ListModelsRequest, TokenizeRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.client.asks import Ask, ChatAsk
from tickertape.client.errors import ServerError
from tickertape.client.grpc_messages import answer_of, deltas_of, request_of
from tickertape.client.records import Answer, Delta

__all__ = ["GrpcWire"]

_MESSAGE_BYTES: Final = 64 << 20
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0
_ABORT_TIMEOUT_S: Final = 2.0

_BROKEN: Final = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)
)
"""What a broken connection looks like, when the server has not said a word about it."""


class GrpcWire:
    """`max_resumes`: how often in a row a stream whose connection breaks is taken up again."""

    def __init__(
        self, target: str, *, api_key: str | None, credentials: grpc.ChannelCredentials | None, max_resumes: int
    ) -> None:
        options = [("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        self._stub: Any = TokenStreamStub(self._channel)
        self._key = () if api_key is None else (("authorization", f"Bearer {api_key}"),)
        self._max_resumes = max_resumes

    async def close(self) -> None:
        await self._channel.close()

    async def whole(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> Answer:
        method = self._stub.Chat if isinstance(ask, ChatAsk) else self._stub.Generate
        async with _told():
            return answer_of(await method(request_of(ask), timeout=timeout_s, metadata=self._metadata(request_id)))

    async def deltas(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> AsyncGenerator[Delta, None]:
        method = self._stub.ChatStream if isinstance(ask, ChatAsk) else self._stub.GenerateStream
        make = self._resumed if self._max_resumes else self._plain
        async with _told(), aclosing(make(method, request_of(ask), timeout_s, request_id)) as messages:
            async for message in messages:
                for delta in deltas_of(message):
                    yield delta

    async def models(self) -> tuple[str, ...]:
        async with _told():
            found = await self._stub.ListModels(ListModelsRequest(), metadata=self._key)
            return tuple(model.name for model in found.models)

    async def tokenize(self, model: str, text: str) -> tuple[int, ...]:
        async with _told():
            request = TokenizeRequest(model=model, text=text)
            return tuple((await self._stub.Tokenize(request, metadata=self._key)).token_ids)

    async def abort(self, request_id: str, timeout_s: float | None = None) -> bool:
        async with _told():
            request = AbortRequest(request_id=request_id)
            return bool((await self._stub.Abort(request, metadata=self._key, timeout=timeout_s)).found)

    def _metadata(self, request_id: str | None) -> tuple[tuple[str, str], ...]:
        return self._key if request_id is None else (*self._key, ("x-request-id", request_id))

    async def _plain(
        self, method: Callable[..., Any], request: Any, timeout_s: float | None, request_id: str | None
    ) -> AsyncGenerator[Any, None]:
        call = method(request, timeout=timeout_s, metadata=self._metadata(request_id))
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()

    async def _resumed(
        self, method: Callable[..., Any], request: Any, timeout_s: float | None, request_id: str | None
    ) -> AsyncGenerator[Any, None]:
        """A server cannot tell a cancel from a broken connection, so who leaves early says so."""
        request_id = request_id or uuid.uuid4().hex
        clock = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else clock() + timeout_s
        request.resumable = True
        num_failed, over = 0, False
        try:
            while not over:
                left_s = None if deadline is None else max(deadline - clock(), 0.0)
                try:
                    async with aclosing(self._plain(method, request, left_s, request_id)) as messages:
                        async for message in messages:
                            if message.resume_token:
                                request = type(request)(resume_token=message.resume_token)
                            request.received = message.sequence
                            num_failed = 0
                            yield message
                    over = True
                except grpc.aio.AioRpcError as error:
                    num_failed += 1
                    over = num_failed > self._max_resumes or not request.resume_token or not _is_broken(error)
                    if over:
                        raise
                    await asyncio.sleep(min(_FIRST_WAIT_S * 2 ** (num_failed - 1), _LONGEST_WAIT_S))
        finally:
            if not over:
                with suppress(ServerError):
                    await self.abort(request_id, _ABORT_TIMEOUT_S)


@asynccontextmanager
async def _told() -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _server_error(error) from error


def _is_broken(error: grpc.aio.AioRpcError) -> bool:
    return error.code() in _BROKEN and rpc_status.from_call(error) is None


def _server_error(error: grpc.aio.AioRpcError) -> ServerError:
    code, param, after_s = "unknown", None, None
    status = rpc_status.from_call(error)
    for detail in () if status is None else status.details:
        info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
        if detail.Unpack(info):
            code = info.reason
        elif detail.Unpack(bad):
            param = bad.field_violations[0].field
        elif detail.Unpack(retry):
            after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return ServerError(error.details() or "", code=code, status=error.code().name, param=param, retry_after_s=after_s)
