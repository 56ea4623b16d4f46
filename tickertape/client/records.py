"""What clients send and get, in no wire's spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

__all__ = ["Answer", "Delta", "Finish", "FinishReason", "Message", "Sampling", "TokenLogprob", "Usage", "schema_text"]

FinishReason = Literal["stop", "length", "tool_calls"]


class Message(Struct, frozen=True):
    """`role`: system, user, assistant or tool."""

    role: str
    content: str


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to answer. What is left out has the server's default; docs/http-api.md says what each means."""

    max_tokens: int | UnsetType = UNSET
    min_tokens: int | UnsetType = UNSET
    n: int | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stop: Sequence[str] | UnsetType = UNSET
    stop_token_ids: Sequence[int] | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    logit_bias: Mapping[int, float] | UnsetType = UNSET
    logprobs: int | UnsetType = UNSET
    return_token_ids: bool | UnsetType = UNSET
    json_schema: Any = UNSET
    """A JSON schema that the answer satisfies."""

    def fields(self) -> dict[str, Any]:
        """Those that are set; `json_schema` aside."""
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name != "json_schema"}
        return {name: value for name, value in found.items() if value is not UNSET}


class TokenLogprob(Struct, frozen=True):
    """A token's text and its log probability."""

    token: str
    logprob: float


class Finish(Struct, frozen=True):
    """Why a choice ended; `stopped_by`: the stop string or stop token of the request that ended it."""

    reason: FinishReason
    stopped_by: str | int | None = None


class Usage(Struct, frozen=True):
    """Tokens of the prompts, generated, and found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Delta(Struct, frozen=True, kw_only=True):
    """More of a choice. `usage` is on the last of a stream, which may have no text."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None


class Answer(Struct, frozen=True):
    """All of an answer: its choices by number, each a Delta with everything in it."""

    choices: tuple[Delta, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text


def schema_text(schema: Any) -> str:
    """As JSON."""
    return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
