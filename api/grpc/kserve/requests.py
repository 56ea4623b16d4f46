"""An infer request as a body of the HTTP API's completions."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from tickertape.api.grpc.kserve.tensors import read_inputs
from tickertape.api.openai.requests import CompletionRequest
from tickertape.core.errors import InvalidRequest

__all__ = ["InferRequest", "read_request"]

_OWN: Final = frozenset({"model", "prompt", "stream", "stream_options", "echo"})
"""Fields of a body that other tensors speak for."""

_WORDS: Final = frozenset(
    {"cache_salt", "user", "guided_regex", "guided_grammar", "guided_json", "guided_choice", "structural_tag"}
)
"""Fields in which a text is meant as one."""

_HARMLESS: Final = frozenset({"binary_data_output", "triton_enable_empty_final_response"})
_TIMEOUT: Final = "timeout"  # microseconds
_PRIORITY: Final = "priority"


class InferRequest(Struct, frozen=True, kw_only=True):
    """`wanted`: names of outputs to give (None: all that there are). `empty_final`: whether the end of a stream is a
    message of its own."""

    body: dict[str, Any]
    stream: bool
    finish_reason: bool
    num_input_tokens: bool
    num_output_tokens: bool
    logprobs: bool
    wanted: frozenset[str] | None
    timeout_s: float | None
    empty_final: bool


def read_request(request: Any) -> InferRequest:
    """Raises InvalidRequest."""
    inputs = read_inputs(request)
    if "text_input" not in inputs:
        raise InvalidRequest("Missing required input: 'text_input'", code="missing_required_parameter",
                             param="text_input")  # fmt: skip
    parameters = {name: _value(value) for name, value in request.parameters.items()}
    stream = bool(inputs.get("stream", False))
    excluded = inputs.get("exclude_input_in_output")
    if stream and excluded is False:
        raise InvalidRequest("Invalid value for 'exclude_input_in_output': a stream never repeats the input",
                             param="exclude_input_in_output")  # fmt: skip
    body = _sampling(inputs.get("sampling_parameters", b"{}"))
    logprobs = bool(inputs.get("return_logprobs", False))
    counts = bool(inputs.get("return_num_output_tokens", False))
    body |= {
        "model": request.model_name,
        "prompt": _text(inputs["text_input"], "text_input"),
        "stream": stream,
        "echo": not stream and not excluded,
    }
    if logprobs:
        body.setdefault("logprobs", 1)
    if counts:
        body["return_token_ids"] = True
    if parameters.get(_PRIORITY):
        body["priority"] = int(parameters[_PRIORITY])
    for name in parameters:
        if name not in _HARMLESS and name not in (_TIMEOUT, _PRIORITY):
            raise InvalidRequest(f"Unknown parameter: {name[:100]!r}", code="unknown_parameter", param=name[:100])
    timeout = parameters.get(_TIMEOUT)
    return InferRequest(
        body=body,
        stream=stream,
        finish_reason=bool(inputs.get("return_finish_reason", False)),
        num_input_tokens=bool(inputs.get("return_num_input_tokens", False)),
        num_output_tokens=counts,
        logprobs=logprobs,
        wanted=frozenset(output.name for output in request.outputs) or None,
        timeout_s=int(timeout) / 1e6 if timeout else None,
        empty_final=bool(parameters.get("triton_enable_empty_final_response", False)),
    )


def _sampling(data: bytes | bool) -> dict[str, Any]:
    """The names are vLLM's, and ours. Clients of Triton write numbers as texts, too."""
    param = "sampling_parameters"
    try:
        given = msgspec.json.decode(data)  # type: ignore[arg-type]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Invalid value for {param!r}: not JSON", code="invalid_json", param=param) from error
    if not isinstance(given, dict):
        raise InvalidRequest(f"Invalid type for {param!r}: an object is wanted", code="invalid_type", param=param)
    for name in given:
        if name in _OWN or name not in CompletionRequest.model_fields:
            raise InvalidRequest(f"Unknown parameter: {name[:100]!r}", code="unknown_parameter", param=name[:100])
    return {name: value if name in _WORDS or name == "stop" else _number(value) for name, value in given.items()}


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        found = msgspec.json.decode(value.lower())
    except msgspec.DecodeError:
        return value
    return found if isinstance(found, bool | int | float) else value


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _text(data: bytes | bool, param: str) -> str:
    try:
        return data.decode()  # type: ignore[union-attr]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Invalid value for {param!r}: not UTF-8", param=param) from error
