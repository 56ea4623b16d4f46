"""How much one call may ask for. Each is checked before anything is allocated, and named in the refusal."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["JSON_PARTS", "JSON_TEXTS", "MAX_ALLOWED_IDS", "PROMPT_SLACK_TOKENS", "CallLimits"]

JSON_PARTS: Final = 65_536
"""Objects, arrays and members of objects in one JSON body. Decoding and validation hold the interpreter whatever
thread they run on, so what bounds a stall of the event loop is the number of things to make; texts may be long."""

JSON_TEXTS: Final = 262_144
"""Strings in one JSON body, keys included."""

MAX_ALLOWED_IDS: Final = 1_048_576
"""Entries of allowed_token_ids as they are sent, more than any vocabulary has; repeats are dropped."""

PROMPT_SLACK_TOKENS: Final = 65_536
"""How many token ids a prompt may have beyond the largest context served, for `truncate_prompt_tokens` to cut off;
longer ones are refused before their items are looked at."""


class CallLimits(Struct, frozen=True, kw_only=True):
    """`max_choices` bounds prompts x max(n, best_of). `max_logprob_values` bounds the log probabilities of new tokens,
    (1 + top) x tokens x choices; `max_prompt_logprob_values` those of prompts, which come all at once."""

    max_choices: int = 128
    max_stop_strings: int = 16  # OpenAI allows 4
    max_stop_chars: int = 1024  # of one stop string
    max_stop_tokens: int = 128
    max_bad_words: int = 128
    max_bad_word_chars: int = 256
    max_logit_bias: int = 1024
    max_top_logprobs: int = 20  # chat: top_logprobs
    max_logprobs: int = 5  # completions: logprobs
    max_prompt_logprobs: int = 20
    max_logprob_values: int = 2_000_000
    max_prompt_logprob_values: int = 200_000
    default_completion_tokens: int = 16
