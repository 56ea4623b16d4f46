"""From a decoding to what the engine gets: checked against the model, its words turned into token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tickertape.api.calls import ChatCall, CompletionCall, Decoding, ProcessorCall
from tickertape.api.limits import CallLimits
from tickertape.api.models import ServedModel
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest
from tickertape.core.request import LogitsProcessorCall, SamplingParams

__all__ = [
    "cache_key",
    "check_logprobs",
    "check_scoring",
    "check_tokens",
    "check_values",
    "context_limit",
    "resolve_max_tokens",
    "to_sampling",
]


_MAX_PROCESSORS: Final = 16


def check_tokens(model: ServedModel, tokens: Collection[int], param: str) -> None:
    """Raises InvalidRequest when an id is not in the model's vocabulary."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < model.vocab_size):
        return
    wrong = next(token for token in tokens if not 0 <= token < model.vocab_size)
    raise InvalidRequest(
        f"Invalid value for {param!r}: token id {_shown(wrong)} is not in 0..{model.vocab_size - 1}", param=param
    )


def _shown(number: int) -> str:
    """JSON's numbers may have any number of digits."""
    return str(number) if abs(number) < 10**20 else f"of {number.bit_length()} bits"


def check_logprobs(model: ServedModel, decoding: Decoding, limits: CallLimits, *, param: str, most: int) -> None:
    """`param` is how the wire spells `decoding.logprobs`, `most` its bound."""
    top = decoding.logprobs
    if top is not None and not 0 <= top <= most:
        raise InvalidRequest(f"Invalid value for {param!r}: must be at least 0 and at most {most}", param=param)
    if top is not None and not model.capabilities.logprobs:
        raise InvalidRequest(f"{param!r} is not supported by the backend of this model", code="unsupported_value",
                             param=param)  # fmt: skip
    top = decoding.prompt_logprobs
    if top is not None and top > limits.max_prompt_logprobs:
        raise InvalidRequest(
            f"Invalid value for 'prompt_logprobs': must be at most {limits.max_prompt_logprobs}",
            param="prompt_logprobs",
        )


def check_scoring(model: ServedModel, call: ChatCall | CompletionCall, *, param: str) -> None:
    """Whether prompts may be scored, and when a call may ask for nothing else. Raises InvalidRequest."""
    alone = call.decoding.prompt_logprobs is not None
    if (alone or call.scores_echo) and not model.capabilities.prompt_logprobs:
        raise InvalidRequest(
            "The backend of this model cannot score prompts",
            code="unsupported_value",
            param="prompt_logprobs" if alone else param,
        )
    if call.decoding.max_tokens == 0 and not (alone or call.echo):
        raise InvalidRequest(
            "Invalid value for 'max_tokens': must be at least 1, or 0 when only the prompt is wanted "
            "(echo, prompt_logprobs)",
            param="max_tokens",
        )


def check_values(
    call: ChatCall | CompletionCall, limits: CallLimits, *, num_prompt_tokens: int, num_echoed: int, num_new: int
) -> None:
    """Bounds the log probabilities that a call can produce: over its prompts, over all echoes of these, over all new
    tokens. Raises InvalidRequest with the product."""
    decoding = call.decoding
    for field, top, positions, most in (
        ("prompt_logprobs", decoding.prompt_logprobs, num_prompt_tokens, limits.max_prompt_logprob_values),
        ("logprobs", decoding.logprobs, num_echoed if call.scores_echo else 0, limits.max_prompt_logprob_values),
        ("logprobs", decoding.logprobs, num_new, limits.max_logprob_values),
    ):
        if top is not None and (values := (1 + top) * positions) > most:
            raise InvalidRequest(
                f"Invalid value for {field!r}: {1 + top} log probabilities at each of {positions} positions are "
                f"{values}, at most {most} are allowed in one request",
                param=field,
            )


def context_limit(model: ServedModel) -> int:
    """The longest sequence, prompt and output, that this model can serve: its context, or what its KV pool holds."""
    pool = model.engine.stats().kv_capacity_tokens
    return min(model.max_model_len, pool) if pool else model.max_model_len


def resolve_max_tokens(
    decoding: Decoding, num_prompt_tokens: int, limit: int, *, default: int | None, param: str
) -> int:
    """How many tokens may be generated. `default` None: what the context leaves. Raises ContextLengthExceeded with
    both numbers, InvalidRequest when `min_tokens` cannot be reached."""
    wanted = decoding.max_tokens
    if wanted is None:
        room = limit - num_prompt_tokens
        wanted = max(room, 1) if default is None else min(default, max(room, 1))
    if num_prompt_tokens + wanted > limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens, but {num_prompt_tokens + wanted} were asked for: "
            f"{num_prompt_tokens} in the prompt and {wanted} for the answer",
            param=param,
        )
    if decoding.min_tokens > wanted:
        raise InvalidRequest(
            f"Invalid value for 'min_tokens': {decoding.min_tokens} are more than max_tokens, {wanted}",
            param="min_tokens",
        )
    return wanted


def to_sampling(model: ServedModel, decoding: Decoding) -> SamplingParams:
    """Everything but `max_tokens`, `seed` and `choice`, which differ by sequence. Raises InvalidRequest."""
    if decoding.priority and not model.priorities:
        raise InvalidRequest("'priority' needs a server whose policy is priority", code="unsupported_value",
                             param="priority")  # fmt: skip
    check_tokens(model, decoding.logit_bias, "logit_bias")
    check_tokens(model, decoding.stop_token_ids, "stop_token_ids")
    check_tokens(model, decoding.allowed_token_ids or (), "allowed_token_ids")
    ends = () if decoding.ignore_eos else model.tokenizer.eos_token_ids
    allowed = decoding.allowed_token_ids
    drawn = model.defaults.over(decoding)
    return SamplingParams(
        max_tokens=0,
        seed=0,
        temperature=drawn.temperature,
        top_k=max(drawn.top_k, 0),
        top_p=drawn.top_p,
        min_p=drawn.min_p,
        presence_penalty=decoding.presence_penalty,
        frequency_penalty=decoding.frequency_penalty,
        repetition_penalty=drawn.repetition_penalty,
        logit_bias=tuple(sorted(decoding.logit_bias.items())),
        allowed_tokens=None if allowed is None else tuple(sorted(set(allowed))),
        bad_tokens=_bad_tokens(model, decoding.bad_words),
        min_tokens=decoding.min_tokens,
        stop_tokens=tuple(dict.fromkeys((*ends, *decoding.stop_token_ids))),
        logprobs=decoding.logprobs,
        prompt_logprobs=decoding.prompt_logprobs,
        logits_processors=_processors(model, decoding.logits_processors),
    )


def _processors(model: ServedModel, calls: Sequence[ProcessorCall]) -> tuple[LogitsProcessorCall, ...]:
    """Raises InvalidRequest for a processor that is not there, or that does not take its arguments."""
    if calls and not model.capabilities.logits_processors:
        raise InvalidRequest("'logits_processors' is not supported by the backend of this model",
                             code="unsupported_value", param="logits_processors")  # fmt: skip
    if len(calls) > _MAX_PROCESSORS:
        raise InvalidRequest(
            f"Invalid value for 'logits_processors': at most {_MAX_PROCESSORS} are allowed", param="logits_processors"
        )
    found = []
    for n, call in enumerate(calls):
        spec = model.processors.get(call.name)
        if spec is None:
            there = ", ".join(model.processors) or "none"
            raise InvalidRequest(
                f"Invalid value for 'logits_processors[{n}].name': {call.name[:100]!r} is not a logits processor of "
                f"this server; there are: {there}",
                code="unsupported_value",
                param=f"logits_processors[{n}].name",
            )
        fault = spec.check(call.arguments)
        if fault is not None:
            where = f"logits_processors[{n}].arguments"
            raise InvalidRequest(f"Invalid value for {where!r}: {fault}", param=where)
        found.append(LogitsProcessorCall(call.name, json.dumps(call.arguments)))
    return tuple(found)


def _bad_tokens(model: ServedModel, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Each word at the start of a text and after a space: tokenizers spell these differently."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip(" ")):
            if tokens := tuple(model.tokenizer.encode(text, add_special_tokens=False)):
                found[tokens] = None
    return tuple(found)


def cache_key(salt: str | None) -> bytes:
    """Requests share cached KV only when these are equal. The tag keeps salts apart from whatever else is digested."""
    return b"" if salt is None else hashlib.sha256(b"salt\0" + salt.encode()).digest()
