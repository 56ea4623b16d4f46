"""The client, over whichever wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeVar

from tickertape.client.asks import Ask, ChatAsk, GenerateAsk
from tickertape.client.records import Answer, Delta, Message, Sampling, Tool, ToolChoice

__all__ = ["Client", "Wire"]

C = TypeVar("C", bound="Client")

_DEFAULT = Sampling()


class Wire(Protocol):
    """How asks reach a server. Raises ServerError for what that refuses."""

    async def whole(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> Answer: ...
    def deltas(self, ask: Ask, *, timeout_s: float | None, request_id: str | None) -> AsyncGenerator[Delta, None]: ...
    async def models(self) -> tuple[str, ...]: ...
    async def close(self) -> None: ...


class Client:
    """Close it, or use it as a context manager. Leaving a stream early, or cancelling the task that waits, cancels the
    request. `timeout_s` bounds a request as the wire can; `request_id` is what the server's logs and `Abort` call it.
    Raises ServerError."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    async def generate(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling = _DEFAULT,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """Continues a text or token ids."""
        ask = GenerateAsk(model, prompt, sampling)
        return await self._wire.whole(ask, timeout_s=timeout_s, request_id=request_id)

    def stream(
        self,
        model: str,
        prompt: str | Sequence[int],
        sampling: Sampling = _DEFAULT,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        ask = GenerateAsk(model, prompt, sampling)
        return self._wire.deltas(ask, timeout_s=timeout_s, request_id=request_id)

    async def chat(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling = _DEFAULT,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """Answers messages."""
        ask = ChatAsk(model, messages, sampling, tools, tool_choice, parallel_tool_calls)
        return await self._wire.whole(ask, timeout_s=timeout_s, request_id=request_id)

    def chat_stream(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling = _DEFAULT,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """The same, as it is generated."""
        ask = ChatAsk(model, messages, sampling, tools, tool_choice, parallel_tool_calls)
        return self._wire.deltas(ask, timeout_s=timeout_s, request_id=request_id)

    async def models(self) -> tuple[str, ...]:
        """The names of what is served."""
        return await self._wire.models()
