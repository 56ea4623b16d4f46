"""The protocol's parameters as a body of the HTTP API's completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tickertape.core.errors import InvalidRequest

__all__ = ["body_of", "check_adapter", "field_of"]

_DEFAULT_TOKENS: Final = 20
_SAMPLE: Final = 1
_JSON: Final = 1

_FIELDS: Final = {
    "model": "model_id",
    "prompt": "requests",
    "max_tokens": "params.stopping.max_new_tokens",
    "min_tokens": "params.stopping.min_new_tokens",
    "stop": "params.stopping.stop_sequences",
    "temperature": "params.sampling.temperature",
    "top_k": "params.sampling.top_k",
    "top_p": "params.sampling.top_p",
    "seed": "params.sampling.seed",
    "repetition_penalty": "params.decoding.repetition_penalty",
    "logprobs": "params.response.top_n_tokens",
    "prompt_logprobs": "params.response.top_n_tokens",
    "truncate_prompt_tokens": "params.truncate_input_tokens",
    "structured_outputs.json": "params.decoding.json_schema",
    "structured_outputs.json_object": "params.decoding.format",
    "structured_outputs.regex": "params.decoding.regex",
    "structured_outputs.choice": "params.decoding.choice",
    "structured_outputs.grammar": "params.decoding.grammar",
}


def field_of(param: str) -> str:
    """What this wire calls the field that a body calls so."""
    return _FIELDS.get(param, param)


def check_adapter(request: Any) -> None:
    """Raises InvalidRequest: no adapters are served."""
    for name in ("prefix_id", "adapter_id"):
        if getattr(request, name):
            raise InvalidRequest(f"{name!r} is not supported by this server", code="unsupported_value", param=name)


def body_of(model: str, texts: Sequence[str], params: Any, *, stream: bool) -> dict[str, Any]:
    """Raises InvalidRequest for what is not honoured."""
    stopping, response, decoding = params.stopping, params.response, params.decoding
    include = stopping.include_stop_sequence if stopping.HasField("include_stop_sequence") else True
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(texts),
        "stream": stream,
        "max_tokens": stopping.max_new_tokens or _DEFAULT_TOKENS,
        "include_stop_str_in_output": include,
        "return_token_ids": True,
    }
    if stopping.min_new_tokens:
        body["min_tokens"] = stopping.min_new_tokens
    if stopping.stop_sequences:
        body["stop"] = list(stopping.stop_sequences)
    if params.truncate_input_tokens:
        body["truncate_prompt_tokens"] = params.truncate_input_tokens
    body |= _sampling(params) | _structure(decoding)
    if decoding.repetition_penalty:
        body["repetition_penalty"] = _short(decoding.repetition_penalty)
    if decoding.HasField("length_penalty"):
        raise _unsupported("params.decoding.length_penalty")
    top = response.top_n_tokens
    if response.token_logprobs or response.token_ranks or top:
        if response.generated_tokens:
            body["logprobs"] = top
        if response.input_tokens:
            body["prompt_logprobs"] = top
    return body


def _sampling(params: Any) -> dict[str, Any]:
    if params.method != _SAMPLE:
        return {"temperature": 0.0}
    sampling = params.sampling
    if sampling.typical_p not in (0.0, 1.0):
        raise _unsupported("params.sampling.typical_p")
    body: dict[str, Any] = {}
    if sampling.HasField("temperature"):
        body["temperature"] = _short(sampling.temperature)
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.top_p:
        body["top_p"] = _short(sampling.top_p)
    if sampling.HasField("seed"):
        body["seed"] = sampling.seed
    return body


def _structure(decoding: Any) -> dict[str, Any]:
    form = decoding.WhichOneof("guided")
    if form is None or (form == "format" and decoding.format != _JSON):
        return {}
    if form == "format":
        return {"structured_outputs": {"json_object": True}}
    value = list(decoding.choice.choices) if form == "choice" else getattr(decoding, form)
    return {"structured_outputs": {"json" if form == "json_schema" else form: value}}


def _short(value: float) -> float:
    """The decimal number that was meant by a 32-bit one: 0.7, not 0.699999988."""
    return float(f"{value:.7g}")


def _unsupported(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param!r} is not supported by this server", code="unsupported_value", param=param)
