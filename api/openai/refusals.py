"""Declared fields that this server does not honour, and what it does take in them.

Strict (the default): any other value is a 400 that names the field. Lenient: the field is dropped and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from tickertape.core.errors import InvalidRequest

__all__ = ["CHAT_FIXED", "COMPLETION_FIXED", "refuse_unhonoured", "without_unhonoured"]

_COMMON: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "guided_decoding_backend": ("auto", "llguidance", "guidance"),
        "guided_whitespace_pattern": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
    }
)

CHAT_FIXED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        **_COMMON,
        "audio": (),
        "documents": ([],),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "verbosity": ("medium",),
        "web_search_options": (),
    }
)
"""By field, the values besides null that are honoured, since they ask for what happens anyway."""

COMPLETION_FIXED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType({**_COMMON, "suffix": ()})


def _honoured(value: object, taken: tuple[Any, ...]) -> bool:
    # 0 == False in Python, but is another value in JSON.
    return value is None or any(type(value) is type(each) and value == each for each in taken)


def refuse_unhonoured(body: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidRequest, code unsupported_value, for the first field with a value that is not honoured."""
    for name, value in body.items():
        if name in fixed and not _honoured(value, fixed[name]):
            taken = ", ".join(repr(each) for each in fixed[name])
            hint = f"; it takes {taken} only" if taken else ""
            raise InvalidRequest(f"{name!r} is not supported by this server{hint}", code="unsupported_value",
                                 param=name)  # fmt: skip


def without_unhonoured(
    body: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]], declared: frozenset[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body without its unknown and its unhonoured fields, and the names of these."""
    ignored = tuple(
        name
        for name, value in body.items()
        if name not in declared or (name in fixed and not _honoured(value, fixed[name]))
    )
    return {name: value for name, value in body.items() if name not in ignored}, ignored
