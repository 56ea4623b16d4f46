"""What a client asks for, as both wires take it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tickertape.client.records import Message, Sampling, Tool, ToolChoice

__all__ = ["Ask", "ChatAsk", "GenerateAsk"]


class GenerateAsk(Struct, frozen=True):
    """A text or token ids to continue."""

    model: str
    prompt: str | Sequence[int]
    sampling: Sampling


class ChatAsk(Struct, frozen=True):
    """Messages to answer. None: the server's default."""

    model: str
    messages: Sequence[Message]
    sampling: Sampling
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


Ask = GenerateAsk | ChatAsk
