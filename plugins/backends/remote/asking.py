"""A request as the body of POST /v1/completions: every field mapped by name, or refused with it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tickertape.plugins import Grammar, InvalidRequest, Request, RowError, SamplingParams, unpack_tokens
from tickertape.plugins.backends.remote.dialects import Dialect

__all__ = ["MAPPED", "body_of", "is_streamed"]

_SAME_NAME: Final = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens",
)  # fmt: skip

MAPPED: Final = (
    *_SAME_NAME, "max_tokens", "seed", "choice", "top_k", "stop_tokens", "logit_bias", "allowed_tokens", "bad_tokens",
    "logprobs", "prompt_logprobs", "logits_processors",
)  # fmt: skip
"""The fields of SamplingParams that are looked at here; a test compares them with those there are."""

_GRAMMARS: Final = {"json_schema": "json", "regex": "regex", "lark": "grammar", "structural_tag": "structural_tag"}


def is_streamed(request: Request, dialect: Dialect) -> bool:
    return dialect.scores_in_streams or request.sampling.prompt_logprobs is None


def body_of(request: Request, model: str, dialect: Dialect) -> dict[str, Any]:
    """Raises InvalidRequest naming a field that the server does not honour, RowError for replayed output."""
    prompt = unpack_tokens(request.prompt)
    if len(prompt) != request.num_prompt_tokens:
        raise RowError("a remote server cannot go on with an answer that was begun elsewhere")
    sampling = request.sampling
    optional = _optional(request, dialect)
    for name in optional:
        if name in dialect.refuses:
            raise InvalidRequest(
                f"{name!r} is not supported by the server behind this model", code="unsupported_value", param=name
            )
    streamed = is_streamed(request, dialect)
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "stream": streamed,
        "max_tokens": sampling.max_tokens if dialect.scores_alone else max(sampling.max_tokens, 1),
        "seed": _seed(sampling, dialect),
        "top_k": sampling.top_k or -1,
        **{name: getattr(sampling, name) for name in _SAME_NAME},
        **dialect.constants,
        **optional,
    }
    if streamed:
        # The first chunk then says how much of the prompt was found in the cache, where the server tells at all.
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def _optional(request: Request, dialect: Dialect) -> dict[str, Any]:
    """What is sent only when it is asked for, by its name on the wire."""
    sampling = request.sampling
    found: dict[str, Any] = {}
    if sampling.stop_tokens:
        found["stop_token_ids"] = list(sampling.stop_tokens)
    if sampling.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.allowed_tokens is not None:
        found["allowed_token_ids"] = list(sampling.allowed_tokens)
    if sampling.bad_tokens:
        found["bad_words"] = sampling.bad_tokens  # ids; the wire has texts only, so all dialects refuse it
    if sampling.logprobs is not None:
        found["logprobs"] = sampling.logprobs
    if sampling.prompt_logprobs is not None:
        found["prompt_logprobs"] = sampling.prompt_logprobs
    if sampling.logits_processors:
        found["logits_processors"] = [
            {"name": call.name, "arguments": json.loads(call.arguments)} for call in sampling.logits_processors
        ]
    if request.grammar is not None:
        found["structured_outputs"] = _structure(request.grammar)
    if request.adapter is not None:
        found["model"] = request.adapter
    if request.cache_key:
        found["cache_salt"] = request.cache_key.hex()
    if request.priority:
        found["priority"] = request.priority
    return found


def _structure(grammar: Grammar) -> dict[str, Any]:
    if grammar.parts or grammar.thinking is not None or grammar.kind not in _GRAMMARS:
        raise InvalidRequest(
            "a constraint of this kind cannot be sent on to the server behind this model",
            code="unsupported_value",
            param="structured_outputs",
        )
    source: Any = grammar.source
    if grammar.kind == "json_schema":
        source = json.loads(source)  # as an object: not every version takes a text
    return {_GRAMMARS[grammar.kind]: source}


def _seed(sampling: SamplingParams, dialect: Dialect) -> int:
    """The choices of one request share a seed and must differ; each is a request of its own upstream."""
    seed = sampling.seed
    if sampling.choice:
        mixed = seed.to_bytes(8, "little") + sampling.choice.to_bytes(8, "little")
        seed = int.from_bytes(hashlib.blake2b(mixed, digest_size=8).digest(), "little")
    if not dialect.signed_seed:
        return seed & (2**63 - 1)
    return seed - 2**64 if seed >= 2**63 else seed
