"""What clients send and get, in no wire's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "Answer",
    "Delta",
    "Finish",
    "FinishReason",
    "Message",
    "Sampling",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Usage",
]

FinishReason = Literal["stop", "length", "tool_calls"]

_STRUCTURES: Final = {
    "json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar", "json_object": "json_object",
    "structural_tag": "structural_tag",
}  # fmt: skip
"""What an answer may follow, and how both wires call that."""


class ToolCall(Struct, frozen=True):
    """A call of an answer, its `index` telling which. `arguments` is the JSON text of an object. In a stream the first
    part has id and name, each later one more of the arguments."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0


class Message(Struct, frozen=True):
    """`role`: system, developer, user, assistant or tool. An assistant's may have `tool_calls`, with or without a
    `content`; a tool's has the `tool_call_id` of the call that it answers."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class Tool(Struct, frozen=True):
    """A function that the model may call. `parameters`: the JSON schema of its arguments; None: it takes none. With
    `strict` every call satisfies that."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


ToolChoice = Literal["none", "auto", "required"] | Tool
"""A tool: the one that must be called."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to answer. What is left out has the server's default; docs/http-api.md says what each means. Of the last six
    at most one is given: what every answer follows."""

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
    include_stop_str_in_output: bool | UnsetType = UNSET
    stop_token_ids: Sequence[int] | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    logit_bias: Mapping[int, float] | UnsetType = UNSET
    allowed_token_ids: Sequence[int] | UnsetType = UNSET
    bad_words: Sequence[str] | UnsetType = UNSET
    logprobs: int | UnsetType = UNSET
    return_token_ids: bool | UnsetType = UNSET
    truncate_prompt_tokens: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    cache_salt: str | UnsetType = UNSET
    json_schema: Any = UNSET
    regex: str | UnsetType = UNSET
    choice: Sequence[str] | UnsetType = UNSET
    grammar: str | UnsetType = UNSET
    json_object: bool | UnsetType = UNSET
    structural_tag: Any = UNSET

    def fields(self) -> dict[str, Any]:
        """Those that are set, but for what answers follow."""
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _STRUCTURES}
        return {name: value for name, value in found.items() if value is not UNSET}

    def structure(self) -> tuple[str, Any] | None:
        """What answers follow, as the wires call it, and its value. Raises ValueError for several."""
        given = {name: value for name in _STRUCTURES if (value := getattr(self, name)) is not UNSET}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: an answer follows one of them")
        return next(((_STRUCTURES[name], value) for name, value in given.items()), None)


class TokenLogprob(Struct, frozen=True):
    """A token's text and its log probability; `top` are the likeliest at its position, in descending order."""

    token: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class Finish(Struct, frozen=True):
    """Why a choice ended; `stopped_by`: the stop string or stop token of the request that ended it."""

    reason: FinishReason
    stopped_by: str | int | None = None


class Usage(Struct, frozen=True):
    """Tokens of the prompts and generated; of the former found in the prefix cache, of the latter reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Delta(Struct, frozen=True, kw_only=True):
    """More of a choice. `usage` is on the last of a stream, which may have no text."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None

    @property
    def message(self) -> Message:
        """Of a whole choice: what to put into the conversation, before the answers of its calls."""
        return Message("assistant", self.text or None, tool_calls=self.tool_calls, reasoning=self.reasoning or None)


class Answer(Struct, frozen=True):
    """All of an answer: its choices by number, each a Delta with everything in it."""

    choices: tuple[Delta, ...]
    usage: Usage

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Answer:
        """What a stream gave, as the answer that it would have been."""
        parts: dict[int, list[Delta]] = {}
        usage = Usage(0, 0)
        for delta in deltas:
            usage = delta.usage or usage
            if delta != Delta(usage=delta.usage):  # not only that
                parts.setdefault(delta.index, []).append(delta)
        return cls(tuple(_whole(index, parts[index]) for index in sorted(parts)), usage)

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Of the first choice."""
        return self.choices[0].tool_calls

    @property
    def message(self) -> Message:
        """Of the first choice."""
        return self.choices[0].message


def _whole(index: int, deltas: Sequence[Delta]) -> Delta:
    calls: dict[int, list[ToolCall]] = {}
    for delta in deltas:
        for call in delta.tool_calls:
            calls.setdefault(call.index, []).append(call)
    return Delta(
        index=index,
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(
            ToolCall(
                "".join(part.id for part in calls[n]),
                "".join(part.name for part in calls[n]),
                "".join(part.arguments for part in calls[n]),
                n,
            )
            for n in sorted(calls)
        ),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish=next((delta.finish for delta in deltas if delta.finish is not None), None),
    )
