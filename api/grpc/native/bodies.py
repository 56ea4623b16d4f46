"""Requests of the native wire as bodies of the HTTP API, whose closed models check them: one truth about fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tickertape.api.proto.tickertape.v1.chat_pb2 import ChatMessage, ChatRequest, Tool, ToolChoice
from tickertape.api.proto.tickertape.v1.generate_pb2 import GenerateRequest, Prompt
from tickertape.api.proto.tickertape.v1.sampling_pb2 import Sampling, StructuredOutputs
from tickertape.core.errors import InvalidRequest

__all__ = ["chat_body", "chat_field", "generate_body", "generate_field"]

_SAMPLING: Final = frozenset(field.name for field in Sampling.DESCRIPTOR.fields)


def generate_body(request: GenerateRequest) -> dict[str, Any]:
    """A body of /v1/completions. Raises InvalidRequest for what is no JSON text."""
    body: dict[str, Any] = {"model": request.model, "prompt": _prompts(request.prompts)}
    body |= _sampling(request.sampling)
    _copy(request, body, "echo", "add_special_tokens")
    return body


def chat_body(request: ChatRequest) -> dict[str, Any]:
    """A body of /v1/chat/completions. Raises InvalidRequest for what is no JSON text."""
    body: dict[str, Any] = {"model": request.model, "messages": [_message(each) for each in request.messages]}
    body |= _sampling(request.sampling)
    if (top := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": top}
    if request.tools:
        body["tools"] = [_tool(tool, n) for n, tool in enumerate(request.tools)]
    if request.HasField("tool_choice"):
        body["tool_choice"] = _choice(request.tool_choice)
    if request.chat_template_kwargs_json:
        body["chat_template_kwargs"] = _json(request.chat_template_kwargs_json, "chat_template_kwargs_json")
    _copy(
        request, body,
        "parallel_tool_calls", "reasoning_effort", "thinking_token_budget", "include_reasoning",
        "add_generation_prompt", "continue_final_message", "echo", "chat_template",
    )  # fmt: skip
    return body


def generate_field(param: str) -> str:
    """What the native wire calls the field that a body calls so."""
    if param == "prompt" or param.startswith("prompt["):
        return f"prompts{param.removeprefix('prompt')}"
    return _sampling_field(param)


def chat_field(param: str) -> str:
    """As `generate_field`."""
    if param == "top_logprobs":
        return "sampling.logprobs"
    if param in ("max_completion_tokens", "chat_template_kwargs"):
        return {"max_completion_tokens": "sampling.max_tokens"}.get(param, "chat_template_kwargs_json")
    if param.startswith("tools["):
        number, _, rest = param.partition(".function.")
        return number + (f".{rest}" if rest else "").replace(".parameters", ".parameters_json")
    return {"tool_choice.function.name": "tool_choice.function"}.get(param) or _sampling_field(param)


def _sampling_field(param: str) -> str:
    first = param.partition(".")[0].partition("[")[0]
    return f"sampling.{param}" if first in _SAMPLING else param


def _sampling(sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for field, value in sampling.ListFields():
        name = field.name
        if name == "structured_outputs":
            body[name] = _structure(value)
        elif name == "logits_processors":
            body[name] = [
                {"name": each.name, "arguments": _json(each.arguments_json or "{}", f"sampling.{name}[{n}]")}
                for n, each in enumerate(value)
            ]
        elif name == "logit_bias":
            body[name] = {str(token): bias for token, bias in value.items()}
        else:
            body[name] = value if isinstance(value, str | int | float) else list(value)
    return body


def _structure(given: StructuredOutputs) -> dict[str, Any]:
    form = given.WhichOneof("form")
    if form is None:
        return {}
    return {form: list(given.choice.values) if form == "choice" else getattr(given, form)}


def _prompts(prompts: Sequence[Prompt]) -> Any:
    forms = {prompt.WhichOneof("form") for prompt in prompts}
    if len(forms) > 1 or None in forms:
        raise InvalidRequest("Invalid value for 'prompts': each has a text, or each has tokens", param="prompt")
    return [prompt.text if prompt.WhichOneof("form") == "text" else list(prompt.tokens.ids) for prompt in prompts]


def _message(message: ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role}
    _copy(message, body, "content", "name", "tool_call_id", "reasoning")
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return body


def _tool(tool: Tool, n: int) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    _copy(tool, function, "description", "strict")
    if tool.parameters_json:
        function["parameters"] = _json(tool.parameters_json, f"tools[{n}].parameters_json")
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice.WhichOneof("choice") == "function":
        return {"type": "function", "function": {"name": choice.function}}
    return choice.mode or None


def _copy(message: Any, body: dict[str, Any], *names: str) -> None:
    for name in names:
        if message.HasField(name):
            body[name] = getattr(message, name)


def _json(text: str, param: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Invalid value for {param!r}: not JSON", code="invalid_json", param=param) from error
