"""How a model writes what is not plain content: its parsers, and what they need of its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tickertape.api.calls import ToolUse
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import InvalidRequest
from tickertape.core.output_parser import ModelSigns, OutputParserSpec
from tickertape.core.request import Thinking
from tickertape.plugins.output_parsers import AUTO, NONE, OutputParsers, choose_parsers

__all__ = ["OutputFormat"]

_GENERIC = "json"


class OutputFormat(Struct, frozen=True):
    """`generic` reads calls where the model has no format of its own, or one that a grammar cannot force; None: tools
    are switched off. `special` are the texts of the tokenizer's special tokens."""

    parsers: OutputParsers = OutputParsers()
    generic: OutputParserSpec | None = None
    special: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(
        cls,
        specs: Iterable[OutputParserSpec],
        template: ChatTemplate | None,
        tokenizer: ModelTokenizer,
        *,
        reasoning: str = AUTO,
        tools: str = AUTO,
    ) -> OutputFormat:
        """Raises PluginError for a parser that is not there."""
        specs = list(specs)
        signs = ModelSigns(
            template="" if template is None else template.source, added_tokens=frozenset(tokenizer.added_texts)
        )
        return cls(
            choose_parsers(specs, signs, reasoning=reasoning, tools=tools),
            None if tools == NONE else next((spec for spec in specs if spec.name == _GENERIC), None),
            tuple((tokenizer.token_text(token), token) for token in sorted(tokenizer.special_ids)),
        )

    def parsers_for(self, use: ToolUse) -> OutputParsers:
        """Those of one request. Raises InvalidRequest when calls cannot be read."""
        parsers = self.parsers
        if not use.tools:
            return OutputParsers(parsers.reasoning, parsers.tools if parsers.tools is parsers.reasoning else None)
        spec = parsers.tools
        if spec is None or (use.required and spec.call_format is None):
            spec = self.generic
        if spec is None:
            raise InvalidRequest("'tools' are not supported for this model", code="unsupported_value", param="tools")
        return OutputParsers(parsers.reasoning, spec)

    def shown(self, parsers: OutputParsers) -> frozenset[int]:
        """The special tokens that the parsers must see."""
        return frozenset(token for text, token in self.special if text in parsers.shows)

    def thinking(self, tokenizer: ModelTokenizer, prompt_end: str, budget: int | None) -> Thinking | None:
        """What may come before an answer to a prompt that ends so; None: nothing that could be told apart from it."""
        reasoning = self.parsers.reasoning
        if reasoning is None or reasoning.tags is None:
            return None
        start, end = reasoning.tags
        if prompt_end.rstrip().endswith(end):
            return None
        return Thinking(
            start,
            end,
            tuple(tokenizer.encode(start, add_special_tokens=False)),
            tuple(tokenizer.encode(end, add_special_tokens=False)),
            opened=prompt_end.rstrip().endswith(start),
            budget=budget,
        )
