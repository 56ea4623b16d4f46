"""Which parsers read a model's text, and how they work together on one choice."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from tickertape.core.errors import PluginError
from tickertape.core.output_parser import (
    ContentPart,
    ModelSigns,
    OutputParser,
    OutputParserSpec,
    OutputPart,
    ParserContext,
    ToolCallPart,
)

__all__ = ["AUTO", "NONE", "ChoiceParser", "OutputParsers", "choose_parsers"]

AUTO: Final = "auto"
NONE: Final = "none"

_log = logging.getLogger(__name__)


class ChoiceParser:
    """Reads one choice: reasoning first, what that leaves as content is searched for calls. An OutputParser itself.

    With `one_call`, a second call ends the choice: it and all after it are not given out, and `ended` says that the
    generation may stop. `has_calls` is what makes a finish of "stop" one of "tool_calls".
    """

    def __init__(self, stages: Sequence[OutputParser], *, one_call: bool = False) -> None:
        self._stages = stages
        self._one_call = one_call
        self.has_calls = False
        self.ended = False

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        if self.ended:
            return ()
        parts: Sequence[OutputPart] = (ContentPart(text),) if text else ()
        for stage in self._stages:
            parts = _through(stage, parts, final)
        if self._one_call:
            parts = self._up_to_second_call(parts)
        self.has_calls = self.has_calls or any(isinstance(part, ToolCallPart) for part in parts)
        return parts

    def _up_to_second_call(self, parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
        for n, part in enumerate(parts):
            if isinstance(part, ToolCallPart) and part.index > 0:
                self.ended = True
                return parts[:n]
        return parts


@dataclass(frozen=True, slots=True)
class OutputParsers:
    """The parsers of one model. `reasoning` and `tools` are the same where one format holds both."""

    reasoning: OutputParserSpec | None = None
    tools: OutputParserSpec | None = None

    @property
    def shows(self) -> frozenset[str]:
        """The special tokens that must stay in the text."""
        return frozenset(token for spec in (self.reasoning, self.tools) if spec is not None for token in spec.shows)

    def open(self, context: ParserContext, *, parallel_tool_calls: bool = True) -> ChoiceParser:
        """A parser for one choice. Calls are looked for only when `context` has tools."""
        stages: list[OutputParser] = []
        if self.reasoning is not None:
            alone = self.reasoning is self.tools
            stages.append(self.reasoning.make(context if alone else replace(context, tools={})))
        if self.tools is not None and self.tools is not self.reasoning and context.tools:
            stages.append(self.tools.make(context))
        return ChoiceParser(stages, one_call=not parallel_tool_calls)


def choose_parsers(
    specs: Iterable[OutputParserSpec], signs: ModelSigns, *, reasoning: str = AUTO, tools: str = AUTO
) -> OutputParsers:
    """The parsers for a model. `reasoning` and `tools`: the name of one, "auto" for the one that is surest (the first
    among equals) if any is, "none". Raises PluginError for a name that is none, or one of the wrong kind."""
    specs = list(specs)
    return OutputParsers(
        reasoning=_chosen(specs, signs, "reasoning", reasoning),
        tools=_chosen(specs, signs, "tools", tools),
    )


def _chosen(
    specs: Sequence[OutputParserSpec], signs: ModelSigns, kind: Literal["reasoning", "tools"], name: str
) -> OutputParserSpec | None:
    if name == NONE:
        return None
    able = [spec for spec in specs if spec.kind in (kind, "both")]
    if name == AUTO:
        best = max(able, key=lambda spec: _score(spec, signs), default=None)
        return best if best is not None and _score(best, signs) > 0 else None
    for spec in able:
        if spec.name == name:
            return spec
    names = ", ".join([AUTO, NONE, *(spec.name for spec in able)])
    raise PluginError(f"no output parser {name!r} for {kind}; there are: {names}")


def _score(spec: OutputParserSpec, signs: ModelSigns) -> int:
    try:
        return spec.detects(signs)
    except Exception:
        _log.warning("output parser %r failed to look at the model and is passed over", spec.name, exc_info=True)
        return 0


def _through(stage: OutputParser, parts: Iterable[OutputPart], final: bool) -> Sequence[OutputPart]:
    made: list[OutputPart] = []
    for part in parts:
        if isinstance(part, ContentPart):
            made += stage.feed(part.text, False)
        else:
            made.append(part)
    if final:
        made += stage.feed("", True)
    return made
