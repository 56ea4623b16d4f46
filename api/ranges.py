"""Checks of a decoding that need no model: ranges, limits, and fields that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tickertape.api.calls import Decoding
from tickertape.api.limits import CallLimits
from tickertape.core.errors import InvalidRequest

__all__ = ["RANGES", "Range", "check_choices", "check_decoding"]


class Range(NamedTuple):
    """Both ends are included, `low` not when `above_low`."""

    low: float
    high: float
    above_low: bool = False

    def __contains__(self, value: object) -> bool:
        # NaN compares false with everything and so is in no range.
        return isinstance(value, int | float) and (
            self.low < value <= self.high if self.above_low else self.low <= value <= self.high
        )

    def __str__(self) -> str:
        return f"{'above' if self.above_low else 'at least'} {self.low:.15g} and at most {self.high:.15g}"


_INT32: Final = 2**31 - 1

RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "max_tokens": Range(0, _INT32),
        "min_tokens": Range(0, _INT32),
        "n": Range(1, _INT32),
        "best_of": Range(1, _INT32),
        "temperature": Range(0, 2),
        "top_p": Range(0, 1, above_low=True),
        "top_k": Range(-1, _INT32),  # -1 and 0: off
        "min_p": Range(0, 1),
        "presence_penalty": Range(-2, 2),
        "frequency_penalty": Range(-2, 2),
        "repetition_penalty": Range(0.01, 100),
        "seed": Range(-(2**63), 2**64 - 1),
        "truncate_prompt_tokens": Range(-1, _INT32),
        "priority": Range(-_INT32, _INT32),
        "prompt_logprobs": Range(0, _INT32),
    }
)
"""What every numeric field of a decoding may be, on every wire."""


def check_decoding(decoding: Decoding, limits: CallLimits) -> None:
    """Raises InvalidRequest naming the field."""
    for name, bounds in RANGES.items():
        value = getattr(decoding, name)
        if value is not None and value not in bounds:
            raise InvalidRequest(f"Invalid value for {name!r}: must be {bounds}", param=name)
    if decoding.truncate_prompt_tokens == 0:
        raise InvalidRequest("Invalid value for 'truncate_prompt_tokens': 0 tokens are no prompt; use -1 or at least 1",
                             param="truncate_prompt_tokens")  # fmt: skip
    if decoding.cache_salt == "":
        raise InvalidRequest("Invalid value for 'cache_salt': must not be empty", param="cache_salt")
    if decoding.allowed_token_ids is not None and not decoding.allowed_token_ids:
        raise InvalidRequest("Invalid value for 'allowed_token_ids': must not be empty", param="allowed_token_ids")
    _check_texts("stop", decoding.stop, limits.max_stop_strings, limits.max_stop_chars)
    _check_texts("bad_words", decoding.bad_words, limits.max_bad_words, limits.max_bad_word_chars)
    _check_count("stop_token_ids", decoding.stop_token_ids, limits.max_stop_tokens)
    _check_count("logit_bias", decoding.logit_bias, limits.max_logit_bias)
    for token, bias in decoding.logit_bias.items():
        if bias not in _BIAS:
            raise InvalidRequest(
                f"Invalid value for 'logit_bias': the bias of token {token} must be {_BIAS}", param="logit_bias"
            )


_BIAS: Final = Range(-100, 100)


def check_choices(num_prompts: int, decoding: Decoding, limits: CallLimits) -> None:
    """Bounds what one call multiplies into. Raises InvalidRequest naming the larger factor."""
    best_of = decoding.best_of
    if best_of is not None and best_of < decoding.n:
        raise InvalidRequest(
            f"Invalid value for 'best_of': must be at least n, got {best_of} and {decoding.n}", param="best_of"
        )
    each = decoding.n if best_of is None else best_of
    if num_prompts * each > limits.max_choices:
        field = "prompt" if num_prompts > each else "n" if best_of is None else "best_of"
        raise InvalidRequest(
            f"Invalid value for {field!r}: {num_prompts} prompts x {each} choices are {num_prompts * each}, "
            f"at most {limits.max_choices} are allowed in one request",
            param=field,
        )


def _check_texts(name: str, texts: Sequence[str], most: int, longest: int) -> None:
    _check_count(name, texts, most)
    for text in texts:
        if not text:
            raise InvalidRequest(f"Invalid value for {name!r}: strings must not be empty", param=name)
        if len(text) > longest:
            raise InvalidRequest(
                f"Invalid value for {name!r}: a string has {len(text)} characters, {longest} are allowed", param=name
            )


def _check_count(name: str, values: Sequence[Any] | Mapping[Any, Any], most: int) -> None:
    if len(values) > most:
        raise InvalidRequest(f"Invalid value for {name!r}: {len(values)} entries, {most} are allowed", param=name)
