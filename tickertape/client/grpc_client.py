"""Over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status
from msgspec import UNSET
from msgspec.structs import replace

from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt, TokenIds
from tickertape.api.proto.tickertape.v1.token_stream_pb2 import ListModelsRequest, TokenizeRequest
from tickertape.api.proto.tickertape.v1.token_stream_pb2_grpc import TokenStreamStub
from tickertape.client.errors import ServerError
from tickertape.client.records import (
    Answer,
    Delta,
    Finish,
    FinishReason,
    Message,
    Sampling,
    TokenLogprob,
    Usage,
    schema_text,
)

__all__ = ["GrpcClient"]

_REASONS: Final[dict[int, FinishReason]] = {1: "stop", 2: "length", 3: "tool_calls"}
_MESSAGE_BYTES: Final = 64 << 20


class GrpcClient:
    """`target`: `host:port`. `credentials`: of TLS; None: plain. Close it, or use it as a context manager. Leaving a
    stream early, or cancelling the task that waits, cancels the request. Raises ServerError."""

    def __init__(
        self, target: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        options = [("grpc.max_receive_message_length", _MESSAGE_BYTES)]
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        self._stub: Any = TokenStreamStub(self._channel)
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

    async def __aenter__(self) -> GrpcClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def generate(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Continues a text or token ids."""
        async with _told():
            request = _generate_request(model, prompt, sampling)
            return _answer(await self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    async def stream(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        request = _generate_request(model, prompt, sampling)
        async for delta in _deltas(self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata)):
            yield delta

    async def chat(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Answers messages."""
        async with _told():
            request = _chat_request(model, messages, sampling)
            return _answer(await self._stub.Chat(request, timeout=timeout_s, metadata=self._metadata))

    async def chat_stream(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        request = _chat_request(model, messages, sampling)
        async for delta in _deltas(self._stub.ChatStream(request, timeout=timeout_s, metadata=self._metadata)):
            yield delta

    async def models(self) -> tuple[str, ...]:
        """The names of what is served."""
        async with _told():
            found = await self._stub.ListModels(ListModelsRequest(), metadata=self._metadata)
            return tuple(model.name for model in found.models)

    async def tokenize(self, model: str, text: str) -> tuple[int, ...]:
        """A text's token ids, with what the tokenizer adds. Over gRPC only."""
        async with _told():
            request = TokenizeRequest(model=model, text=text)
            return tuple((await self._stub.Tokenize(request, metadata=self._metadata)).token_ids)


def _generate_request(model: str, prompt: str | Sequence[int], sampling: Sampling | None) -> GenerateRequest:
    given = Prompt(text=prompt) if isinstance(prompt, str) else Prompt(tokens=TokenIds(ids=prompt))
    return GenerateRequest(model=model, prompts=[given], sampling=_sampling(sampling))


def _chat_request(model: str, messages: Sequence[Message], sampling: Sampling | None) -> ChatRequest:
    return ChatRequest(
        model=model,
        messages=[ChatMessage(role=each.role, content=each.content) for each in messages],
        sampling=_sampling(sampling),
    )


def _sampling(sampling: Sampling | None) -> Any:
    if sampling is None:
        return None
    fields = sampling.fields()
    if sampling.json_schema is not UNSET:
        fields["structured_outputs"] = {"json": schema_text(sampling.json_schema)}
    return fields


@asynccontextmanager
async def _told() -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _server_error(error) from error


async def _deltas(call: Any) -> AsyncGenerator[Delta, None]:
    try:
        async with _told():
            async for message in call:
                usage = _usage(message.usage) if message.HasField("usage") else None
                *others, last = [_delta(choice) for choice in message.choices] or [Delta()]
                for delta in others:
                    yield delta
                yield replace(last, usage=usage)
    finally:
        call.cancel()


def _answer(message: Any) -> Answer:
    return Answer(tuple(_delta(choice) for choice in message.choices), _usage(message.usage))


def _delta(choice: Any) -> Delta:
    finish = None
    if choice.HasField("finish"):
        by = choice.finish.WhichOneof("stopped_by")
        finish = Finish(_REASONS[choice.finish.reason], None if by is None else getattr(choice.finish, by))
    chat = hasattr(choice, "content")
    return Delta(
        index=choice.index,
        text=choice.content if chat else choice.text,
        reasoning=choice.reasoning if chat else "",
        token_ids=tuple(choice.token_ids),
        logprobs=tuple(TokenLogprob(entry.token, entry.logprob) for entry in choice.logprobs),
        finish=finish,
    )


def _usage(usage: Any) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


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
