"""The client's records as bodies of the HTTP API, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tickertape.client.asks import Ask, ChatAsk
from tickertape.client.records import (
    Answer,
    Delta,
    Finish,
    Message,
    Sampling,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)

__all__ = ["answer_of", "body_of", "deltas_of", "path_of"]


def path_of(ask: Ask) -> str:
    return "/v1/chat/completions" if isinstance(ask, ChatAsk) else "/v1/completions"


def body_of(ask: Ask) -> dict[str, Any]:
    """Raises ValueError for a sampling that contradicts itself."""
    body = {"model": ask.model, **_sampling(ask.sampling)}
    if not isinstance(ask, ChatAsk):
        return {**body, "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)}
    if (top := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    body["messages"] = [_message(each) for each in ask.messages]
    if ask.tools:
        body["tools"] = [_tool(each) for each in ask.tools]
    if ask.tool_choice is not None:
        body["tool_choice"] = _choice(ask.tool_choice)
    if ask.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = ask.parallel_tool_calls
    return body


def answer_of(body: Mapping[str, Any], ask: Ask) -> Answer:
    return Answer(tuple(_delta(choice, ask) for choice in body["choices"]), _usage(body["usage"]))


def deltas_of(event: Mapping[str, Any], ask: Ask) -> list[Delta]:
    """Of an event of a stream. Those that say nothing, as the one of the role, are left out."""
    found = [_delta(choice, ask) for choice in event["choices"]]
    if usage := event.get("usage"):
        found.append(Delta(usage=_usage(usage)))
    return [delta for delta in found if delta != Delta(index=delta.index)]


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for name in ("name", "tool_call_id", "reasoning"):
        if (value := getattr(message, name)) is not None:
            body[name] = value
    return body


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _choice(choice: ToolChoice) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, Tool) else choice


def _sampling(sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(sampling.fields(), str_keys=True)
    if (structure := sampling.structure()) is not None:
        form, value = structure
        body["structured_outputs"] = {form: list(value) if form == "choice" else value}
    return body


def _delta(choice: Mapping[str, Any], ask: Ask) -> Delta:
    part = choice.get("message") or choice.get("delta") or {}
    finish = choice["finish_reason"]
    return Delta(
        index=choice["index"],
        text=choice.get("text") or part.get("content") or "",
        reasoning=part.get("reasoning") or "",
        tool_calls=tuple(_call(n, call) for n, call in enumerate(part.get("tool_calls") or ())),
        token_ids=tuple(choice.get("token_ids") or ()),
        logprobs=_logprobs(choice.get("logprobs"), ask.sampling.logprobs),
        finish=None if finish is None else Finish(finish, choice.get("stop_reason")),
    )


def _call(n: int, call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(call.get("id") or "", function.get("name") or "", function["arguments"], call.get("index", n))


def _logprobs(given: Mapping[str, Any] | None, num_top: Any) -> tuple[TokenLogprob, ...]:
    if not given:
        return ()
    if "content" in given:
        return tuple(
            TokenLogprob(
                entry["token"],
                entry["logprob"],
                tuple(TokenLogprob(top["token"], top["logprob"]) for top in entry["top_logprobs"]),
            )
            for entry in given["content"]
        )
    # The last of the top candidates may be the token itself, one more than was asked for.
    tops = [[TokenLogprob(*each) for each in (top or {}).items()][:num_top] for top in given["top_logprobs"]]
    return tuple(
        TokenLogprob(token, logprob, tuple(top))
        for token, logprob, top in zip(given["tokens"], given["token_logprobs"], tops, strict=True)
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0),
    )
