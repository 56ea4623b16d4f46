"""The client's records as messages of `tickertape.v1`, and back."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest
from tickertape.api.proto.tickertape.v1.chat_pb2 import Tool as ToolMessage
from tickertape.api.proto.tickertape.v1.chat_pb2 import ToolCall as ToolCallMessage
from tickertape.api.proto.tickertape.v1.chat_pb2 import ToolChoice as ToolChoiceMessage
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt, TokenIds
from tickertape.client.asks import Ask, ChatAsk
from tickertape.client.records import (
    Answer,
    Delta,
    Finish,
    FinishReason,
    Message,
    Sampling,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)

__all__ = ["answer_of", "deltas_of", "request_of"]

_REASONS: Final[dict[int, FinishReason]] = {1: "stop", 2: "length", 3: "tool_calls"}


def request_of(ask: Ask) -> ChatRequest | GenerateRequest:
    """Raises ValueError for a sampling that contradicts itself."""
    if isinstance(ask, ChatAsk):
        return ChatRequest(
            model=ask.model,
            messages=[_message(each) for each in ask.messages],
            sampling=_sampling(ask.sampling),
            tools=[_tool(each) for each in ask.tools],
            tool_choice=None if ask.tool_choice is None else _choice(ask.tool_choice),
            parallel_tool_calls=ask.parallel_tool_calls,
        )
    given = ask.prompt
    prompt = Prompt(text=given) if isinstance(given, str) else Prompt(tokens=TokenIds(ids=given))
    return GenerateRequest(model=ask.model, prompts=[prompt], sampling=_sampling(ask.sampling))


def answer_of(message: Any) -> Answer:
    return Answer(tuple(_delta(choice) for choice in message.choices), _usage(message.usage))


def deltas_of(message: Any) -> list[Delta]:
    """Of a message of a stream; the last has its usage."""
    found = [_delta(choice) for choice in message.choices]
    if message.HasField("usage"):
        found = found or [Delta()]
        found[-1] = replace(found[-1], usage=_usage(message.usage))
    return found


def _message(message: Message) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=[
            ToolCallMessage(index=n, id=call.id, name=call.name, arguments=call.arguments)
            for n, call in enumerate(message.tool_calls)
        ],
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _tool(tool: Tool) -> ToolMessage:
    schema = "" if tool.parameters is None else _json(tool.parameters)
    return ToolMessage(name=tool.name, description=tool.description, parameters_json=schema, strict=tool.strict)


def _choice(choice: ToolChoice) -> ToolChoiceMessage:
    return ToolChoiceMessage(function=choice.name) if isinstance(choice, Tool) else ToolChoiceMessage(mode=choice)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    fields = sampling.fields()
    if (structure := sampling.structure()) is not None:
        form, value = structure
        if form in ("json", "structural_tag"):
            value = value if isinstance(value, str) else _json(value)
        fields["structured_outputs"] = {form: {"values": list(value)} if form == "choice" else value}
    return fields


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
        tool_calls=tuple(
            ToolCall(call.id, call.name, call.arguments, call.index) for call in (choice.tool_calls if chat else ())
        ),
        token_ids=tuple(choice.token_ids),
        logprobs=tuple(_logprob(entry) for entry in choice.logprobs),
        finish=finish,
    )


def _logprob(entry: Any) -> TokenLogprob:
    return TokenLogprob(entry.token, entry.logprob, tuple(TokenLogprob(top.token, top.logprob) for top in entry.top))


def _usage(usage: Any) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
