"""How much one call may ask for. Each is checked before anything is allocated, and named in the refusal."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["CallLimits"]


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
