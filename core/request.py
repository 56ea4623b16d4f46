"""What is asked of an engine and what it answers, in token ids. Nothing here knows text, HTTP or a device."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

__all__ = [
    "Finish",
    "FinishReason",
    "Grammar",
    "LogitsProcessorCall",
    "Request",
    "SamplingParams",
    "Thinking",
    "TokenDelta",
    "TokenLogprobs",
    "pack_tokens",
    "unpack_tokens",
]

FinishReason = Literal["stop", "length"]


def pack_tokens(tokens: list[int] | tuple[int, ...]) -> bytes:
    """Token ids as little-endian u32 bytes, the form in which they cross processes."""
    return np.asarray(tokens, dtype="<u4").tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The inverse of `pack_tokens`."""
    return np.frombuffer(packed, dtype="<u4").tolist()  # type: ignore[no-any-return]


class LogitsProcessorCall(Struct, frozen=True):
    """A processor by its registered name, and the JSON text of the object that is its arguments."""

    name: str
    arguments: str = "{}"


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token of one sequence is chosen. Validated by the front; the engine trusts the ranges given here.

    Order of application: logits processors, bad / allowed tokens and logit_bias, min_tokens, repetition, frequency and
    presence penalties, temperature, min_p, top_k, top_p (the filters act on the distribution after temperature). Log
    probabilities are of the model's own distribution, before any of these.
    """

    max_tokens: int  # 0: score the prompt only
    seed: int  # 64 bits, unsigned; drawn at admission when the client gives none
    temperature: float = 1.0  # 0: greedy, the lowest id among equals
    top_k: int = 0  # 0: off. Ids that tie with the k-th are kept
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    repetition_penalty: float = 1.0  # over prompt and output tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    bad_tokens: tuple[tuple[int, ...], ...] = ()  # sequences of ids that must not be completed
    min_tokens: int = 0  # stop_tokens are not sampled before so many output tokens
    stop_tokens: tuple[int, ...] = ()  # the model's end tokens too, unless ignore_eos
    logprobs: int | None = None  # how many top ids beside the sampled one; None: no logprobs at all
    prompt_logprobs: int | None = None
    logits_processors: tuple[LogitsProcessorCall, ...] = ()  # in the order in which they apply
    choice: int = 0  # which of n; enters the random counter


class Thinking(Struct, frozen=True):
    """Free text before the answer, from `start` to `end`; it may be missing. The tokens are how the model writes these
    two. `opened`: the prompt has written `start` already. After `budget` ids of it the end is forced; None: never."""

    start: str
    end: str
    start_tokens: tuple[int, ...]
    end_tokens: tuple[int, ...]
    opened: bool = False
    budget: int | None = None


class Grammar(Struct, frozen=True):
    """A constraint on the output, compiled in the worker. `kind` says how `source` is read; "free": anything goes. A
    Lark source may refer to `parts`, JSON schemas, by their names, as `@name`. What is thought before the answer is
    not held to the grammar. Engines that bring their own scheduler get neither parts nor thinking, and no "free"."""

    kind: Literal["json_schema", "regex", "lark", "structural_tag", "free"]
    source: str
    parts: tuple[tuple[str, str], ...] = ()
    thinking: Thinking | None = None


class Request(Struct, frozen=True, kw_only=True):
    """One sequence to continue; n, best_of and lists of prompts are fanned out above the engine.

    `id` is the server's own counter, never a client's string. `prompt` is u32 ids (`pack_tokens`). The ids after the
    first `num_prompt_tokens` are replayed output (resumption): limits, penalties and random positions count from
    there. `cache_key` digests salt, adapter and media and is chained into every block hash. `arrival` and `deadline`
    are seconds on the front's monotonic clock; the worker only compares arrivals with each other.
    """

    id: int
    prompt: bytes
    num_prompt_tokens: int
    sampling: SamplingParams
    grammar: Grammar | None = None
    adapter: str | None = None
    cache_key: bytes = b""
    tenant: str = ""
    priority: int = 0  # smaller goes first
    arrival: float = 0.0
    deadline: float | None = None


class TokenLogprobs(Struct, frozen=True):
    """Log probabilities at one position: entry 0 is the token itself, the rest the top ids in descending order."""

    ids: tuple[int, ...]
    values: tuple[float, ...]
    rank: int  # of entry 0 among the whole vocabulary, 1 = most likely


class Finish(Struct, frozen=True):
    """Why a sequence ended. `stop_token` is the stop id that ended it: the last of the delta's tokens."""

    reason: FinishReason
    stop_token: int | None = None


class TokenDelta(Struct, frozen=True, omit_defaults=True, gc=False):
    """What one step added to one sequence.

    `logprobs` has one entry per token when asked for. `prompt_logprobs` come while the prompt is scored, in order,
    one entry per prompt position from the second on. `num_cached_tokens` (on the first delta only) counts the prompt
    tokens that came from the prefix cache. Exactly one delta of a stream, the last, has `finish`.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    num_cached_tokens: int | None = None
    finish: Finish | None = None
