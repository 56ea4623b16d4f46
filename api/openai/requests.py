"""The bodies of /v1/chat/completions and /v1/completions: every field of the OpenAI APIs and every extra of vLLM that
we know, and no other. Types are checked here; ranges and the model's own bounds in the service, for every wire.

A field that stands in `refusals.py` takes only what is listed there. `user`, `metadata`, `safety_identifier` and
`prompt_cache_key` have no effect and are accepted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tickertape.api.calls import ChatCall, CompletionCall, Decoding, ProcessorCall, PromptInput, Reasoning
from tickertape.api.limits import MAX_ALLOWED_IDS
from tickertape.api.openai.fields import ENTRIES, MAX_ENTRIES, Closed, TextOrTexts
from tickertape.api.openai.messages import Message, as_template_message
from tickertape.api.openai.structure import Choices, ResponseFormat, StructuredOutputs, structure_of
from tickertape.api.openai.tools import ToolChoice, Tools, tool_use
from tickertape.api.ranges import RANGES
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest

__all__ = ["ChatRequest", "CompletionRequest", "StreamOptions", "to_chat_call", "to_completion_call"]


class StreamOptions(Closed):
    """`include_usage`: a last chunk with the usage; `continuous_usage_stats`: the usage so far on every chunk;
    `include_obfuscation`: padding that hides how long each chunk's text is."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ProcessorRequest(Closed):
    """A logits processor of a plugin, by its name; `arguments` is what it takes."""

    name: str
    arguments: dict[str, Any] | None = None


class SharedRequest(Closed):
    """What both bodies have. See `calls.Decoding` for what the fields mean."""

    model: str
    # OpenAI
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_ENTRIES)] | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: TextOrTexts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_ENTRIES)] | None = None
    # vLLM
    add_special_tokens: bool | None = None
    allowed_token_ids: Annotated[list[int], Field(max_length=MAX_ALLOWED_IDS, fail_fast=True)] | None = None
    bad_words: Annotated[list[str], ENTRIES] | None = None
    cache_salt: str | None = None
    echo: bool | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    priority: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: Annotated[list[int], ENTRIES] | None = None
    top_k: int | None = None
    truncate_prompt_tokens: int | None = None
    # ours
    logits_processors: Annotated[list[ProcessorRequest], ENTRIES] | None = None
    # see structure.py
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    response_format: ResponseFormat | None = None
    structural_tag: Any = None
    structured_outputs: StructuredOutputs | None = None
    # see refusals.py
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    service_tier: Any = None
    store: Any = None


class ChatRequest(SharedRequest):
    messages: Annotated[list[Message], ENTRIES]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    tool_choice: ToolChoice | None = None
    tools: Tools | None = None
    safety_identifier: str | None = None
    # vLLM
    add_generation_prompt: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    # see refusals.py
    audio: Any = None
    documents: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(SharedRequest):
    prompt: Any
    best_of: int | None = None
    logprobs: int | None = None
    # see refusals.py
    suffix: Any = None


def to_chat_call(request: ChatRequest, *, tenant: str, timeout_s: float | None) -> ChatCall:
    """Raises InvalidRequest for fields that contradict each other."""
    _check_stream_options(request)
    if not request.messages:
        raise InvalidRequest("Invalid value for 'messages': there is none", param="messages")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    if request.add_special_tokens:
        raise InvalidRequest("'add_special_tokens' is not supported for chats: the template writes them itself",
                             code="unsupported_value", param="add_special_tokens")  # fmt: skip
    longest = request.max_completion_tokens
    if longest is not None and request.max_tokens not in (None, longest):
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' differ; send one of them", param="max_tokens")
    if longest is None:
        longest = request.max_tokens
    field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    if longest == 0:
        raise InvalidRequest(f"Invalid value for {field!r}: must be at least 1", param=field)
    if longest is not None and longest not in RANGES["max_tokens"]:
        raise InvalidRequest(f"Invalid value for {field!r}: must be {RANGES['max_tokens']}", param=field)
    add_prompt = request.add_generation_prompt
    return ChatCall(
        model=request.model,
        messages=tuple(as_template_message(message) for message in request.messages),
        decoding=_decoding(
            request, max_tokens=longest, logprobs=(request.top_logprobs or 0) if request.logprobs else None
        ),
        add_generation_prompt=not request.continue_final_message if add_prompt is None else add_prompt,
        continue_final_message=bool(request.continue_final_message),
        echo=bool(request.echo),
        tools=tool_use(request.tools, request.tool_choice, parallel=request.parallel_tool_calls is not False),
        reasoning=Reasoning(
            effort=request.reasoning_effort,
            budget=_budget(request.thinking_token_budget),
            shown=request.include_reasoning is not False,
        ),
        template=request.chat_template,
        template_kwargs=request.chat_template_kwargs or {},
        tenant=tenant,
        timeout_s=timeout_s,
    )


def _budget(given: int | None) -> int | None:
    if given is not None and given < 0:
        raise InvalidRequest("Invalid value for 'thinking_token_budget': must be at least 0",
                             param="thinking_token_budget")  # fmt: skip
    return given


def to_completion_call(
    request: CompletionRequest, *, tenant: str, timeout_s: float | None, max_prompt_ids: int
) -> CompletionCall:
    """Raises InvalidRequest for fields that contradict each other, and for a prompt of another type;
    ContextLengthExceeded for one of more than `max_prompt_ids`, whatever these are."""
    _check_stream_options(request)
    best_of = request.best_of
    if request.stream and best_of is not None and best_of > (request.n or 1):
        raise InvalidRequest("'best_of' above n cannot be streamed: the best is known at the end only",
                             param="best_of")  # fmt: skip
    return CompletionCall(
        model=request.model,
        prompts=_prompts(request.prompt, max_prompt_ids),
        decoding=_decoding(request, max_tokens=request.max_tokens, logprobs=request.logprobs, best_of=best_of),
        echo=bool(request.echo),
        add_special_tokens=request.add_special_tokens is not False,
        tenant=tenant,
        timeout_s=timeout_s,
    )


def _check_stream_options(request: SharedRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' needs 'stream' to be true", param="stream_options")


def _decoding(
    request: SharedRequest, *, max_tokens: int | None, logprobs: int | None, best_of: int | None = None
) -> Decoding:
    given: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    for name in ("stop", "bad_words", "stop_token_ids"):
        if (values := getattr(request, name)) is not None:
            given[name] = tuple(values)
    if request.allowed_token_ids is not None:
        given["allowed_token_ids"] = tuple(dict.fromkeys(request.allowed_token_ids))
    if request.logit_bias is not None:
        given["logit_bias"] = {_token_id(key): float(bias) for key, bias in request.logit_bias.items()}
    if request.logits_processors is not None:
        given["logits_processors"] = tuple(
            ProcessorCall(call.name, call.arguments or {}) for call in request.logits_processors
        )
    return Decoding(
        max_tokens=max_tokens,
        best_of=best_of,
        logprobs=logprobs,
        include_stop=bool(request.include_stop_str_in_output),
        structure=structure_of(request),
        **given,
    )


_SAME_NAME = (
    "cache_salt", "frequency_penalty", "ignore_eos", "min_p", "min_tokens", "n", "presence_penalty", "priority",
    "prompt_logprobs", "repetition_penalty", "return_token_ids", "seed", "skip_special_tokens", "temperature", "top_k",
    "top_p", "truncate_prompt_tokens",
)  # fmt: skip


def _token_id(key: str) -> int:
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise InvalidRequest(f"Invalid value for 'logit_bias': {key[:100]!r} is not a token id", param="logit_bias")
    return int(key)


def _prompts(value: Any, max_ids: int) -> tuple[PromptInput, ...]:
    """A text, ids, or an array of either: its first item says of which."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _wrong_type("prompt", "a string, an array of token ids, or an array of either")
    first = value[0] if value else None
    if type(first) is int:
        return (_ids(value, "prompt", max_ids),)
    found: list[PromptInput] = []
    for n, each in enumerate(value):
        if isinstance(first, list) and isinstance(each, list):
            found.append(_ids(each, f"prompt[{n}]", max_ids))
        elif isinstance(first, str) and isinstance(each, str):
            found.append(each)
        else:
            wanted = "a string" if isinstance(first, str) else "an array of token ids"
            raise _wrong_type(f"prompt[{n}]", wanted if n else "a string, a token id or an array of token ids")
    return tuple(found)


def _ids(values: list[Any], param: str, most: int) -> tuple[int, ...]:
    if len(values) > most:
        raise ContextLengthExceeded(f"The prompt has {len(values)} tokens, at most {most} are looked at", param=param)
    if set(map(type, values)) - {int}:
        wrong = next(k for k, token in enumerate(values) if type(token) is not int)
        raise _wrong_type(f"{param}[{wrong}]", "a token id")
    return tuple(values)


def _wrong_type(param: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for {param!r}: {wanted} is wanted", code="invalid_type", param=param)
