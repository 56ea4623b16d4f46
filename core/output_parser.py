"""The seam between a model's text and what a client is shown: content, reasoning and tool calls.

A parser sees the text of one choice after detokenising and says what each stretch of it is. It knows one format, no
wire, and nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

__all__ = [
    "CallFormat",
    "ContentPart",
    "FoldedCall",
    "FoldedOutput",
    "ModelSigns",
    "OutputParser",
    "OutputParserKind",
    "OutputParserSpec",
    "OutputPart",
    "ParserContext",
    "ReasoningPart",
    "ToolCallPart",
    "fold_parts",
    "new_call_id",
]


class ContentPart(Struct, frozen=True, gc=False):
    """More of the answer. Never empty."""

    text: str


class ReasoningPart(Struct, frozen=True, gc=False):
    """More of what the model thinks before it answers. Never empty."""

    text: str


class ToolCallPart(Struct, frozen=True, gc=False):
    """More of call `index`. The first part of a call has `id` and `name` and no arguments; each later one has neither,
    and more of the arguments, which joined are the JSON text of an object unless the model broke off or wrote none."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


OutputPart = ContentPart | ReasoningPart | ToolCallPart


class OutputParser(Protocol):
    """Reads the text of one choice. One thread calls it."""

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        """What `text`, the next piece, settles, in the order of the text. `final` comes once, with the last piece,
        which may be empty; then nothing is held back any more. Raises ValueError when fed after that.

        However a text is cut into pieces, its parts fold to the same output. Nothing of the text is lost but the
        format's own markup and the white space beside it; what looked like a call and is none comes out as content,
        as it was written. The work is linear in the length of the text.
        """
        ...


def new_call_id() -> str:
    """`call_` and 24 random characters."""
    return "call_" + token_hex(12)


class ParserContext(Struct, frozen=True, kw_only=True):
    """What a parser may know of the request it reads the answer to.

    `tools`: by name, the JSON schema of each tool's parameters; only these may be called. `prompt_end`: the end of the
    rendered prompt (a few hundred characters), which shows whether the template already opened the reasoning; None:
    not known. `new_id` gives each call its id.
    """

    tools: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    prompt_end: str | None = None
    new_id: Callable[[], str] = new_call_id


class ModelSigns(Struct, frozen=True, kw_only=True):
    """What tells a model's output format before it has said a word: the source of its chat template (of all of them,
    joined), and the texts of its tokenizer's added tokens."""

    template: str = ""
    added_tokens: frozenset[str] = frozenset()

    def mention(self, *marks: str) -> bool:
        """Whether the template or the vocabulary has each of `marks`."""
        return all(mark in self.template or mark in self.added_tokens for mark in marks)


class CallFormat(Struct, frozen=True, kw_only=True):
    """How calls with JSON arguments are spelled, so that a grammar can force one:
    `before`, then per call `open` NAME `middle` ARGUMENTS `close`, joined by `between`, then `after`."""

    open: str
    middle: str
    close: str
    before: str = ""
    between: str = ""
    after: str = ""

    def spell(self, calls: Iterable[tuple[str, str]]) -> str:
        """The text of calls, each a name and the JSON text of its arguments."""
        spelled = (self.open + name + self.middle + arguments + self.close for name, arguments in calls)
        return self.before + self.between.join(spelled) + self.after


OutputParserKind = Literal["reasoning", "tools", "both"]


def _detects_nothing(_: ModelSigns) -> int:
    return 0


class OutputParserSpec(Struct, frozen=True, kw_only=True):
    """A registered parser. It runs in the front, so what registers it imports nothing heavy.

    `make` opens a parser for one choice. `detects` says how surely a model writes this format, for the automatic
    choice: 0 not at all, 1 it might, 2 its marks are there, 3 nothing else is written so. `shows`: special tokens that
    must stay in the text for the parser to see them. `tags`: the two texts that reasoning, at the start of the answer,
    stands between; None where it is marked in another way. `triggers`: texts at which a call begins, wherever they
    come. `call_format` None: the format's arguments are no JSON text, so no JSON grammar can force a call in it.
    """

    name: str
    kind: OutputParserKind
    make: Callable[[ParserContext], OutputParser]
    detects: Callable[[ModelSigns], int] = _detects_nothing
    shows: tuple[str, ...] = ()
    tags: tuple[str, str] | None = None
    triggers: tuple[str, ...] = ()
    call_format: CallFormat | None = None
    summary: str = ""


class FoldedCall(Struct, frozen=True):
    id: str
    name: str
    arguments: str


class FoldedOutput(Struct, frozen=True):
    """A whole answer."""

    content: str
    reasoning: str
    calls: tuple[FoldedCall, ...]


def fold_parts(parts: Iterable[OutputPart]) -> FoldedOutput:
    """The answer that a stream of parts adds up to. Raises ValueError where a call's parts break the order."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, str, list[str]]] = []
    for part in parts:
        match part:
            case ContentPart(text):
                content.append(text)
            case ReasoningPart(text):
                reasoning.append(text)
            case ToolCallPart(index, str(id), str(name), "") if index == len(calls):
                calls.append((id, name, []))
            case ToolCallPart(index, None, None, arguments) if index == len(calls) - 1:
                calls[index][2].append(arguments)
            case _:
                raise ValueError(f"out of order: {part}")
    folded = tuple(FoldedCall(id, name, "".join(arguments)) for id, name, arguments in calls)
    return FoldedOutput("".join(content), "".join(reasoning), folded)
