"""What every chunk and every answer of one request carries, and how its usage is spelled."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Struct

from tickertape.api.events import Usage
from tickertape.api.models import ServedModel

__all__ = ["Head", "UsageBody", "usage_body"]


class Head(Struct, frozen=True):
    """`created` is whole seconds since the epoch."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def make(cls, prefix: str, object: str, model: ServedModel, created: float) -> Head:
        return cls(f"{prefix}-{secrets.token_hex(16)}", object, int(created), model.name, model.fingerprint)

    def json_open(self) -> bytes:
        """The object's beginning, without its closing brace."""
        return msgspec.json.encode(self)[:-1]


class _PromptDetails(Struct):
    cached_tokens: int


class _CompletionDetails(Struct):
    reasoning_tokens: int


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails
    completion_tokens_details: _CompletionDetails


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        _PromptDetails(usage.cached_tokens),
        _CompletionDetails(usage.reasoning_tokens),
    )
