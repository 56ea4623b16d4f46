"""Collecting what a format makes of a text."""

from __future__ import annotations

from typing import Final, TypeAlias

from tickertape.plugins import ContentPart, OutputPart, ParserContext, ReasoningPart, ToolCallPart

__all__ = ["PartSink"]

_Kind: TypeAlias = type[ContentPart] | type[ReasoningPart]
_SPACE: Final = " \t\r\n"


class PartSink:
    """Takes in text and calls, gives out parts: none empty, neighbours of one kind as one.

    White space is held until it is known what follows. Inside a text it stays as it is. Beside markup it is layout, and
    shown only where it keeps two texts of one kind apart.
    """

    def __init__(self, context: ParserContext) -> None:
        self.tools = context.tools
        self._new_id = context.new_id
        self._parts: list[OutputPart] = []
        self._kind: _Kind = ContentPart
        self._begun: set[_Kind] = set()  # the kinds that had text
        self._text: list[str] = []  # of `_kind`, ready to go
        self._space: list[str] = []  # of `_kind`, held
        self._beside_markup = False
        self._num_calls = 0

    def content(self, text: str) -> None:
        self._add(ContentPart, text)

    def reasoning(self, text: str) -> None:
        self._add(ReasoningPart, text)

    def markup(self) -> None:
        """Says that markup stood here."""
        self._beside_markup = True

    def open_call(self, name: str) -> None:
        self._flush()
        self.markup()
        self._parts.append(ToolCallPart(self._num_calls, self._new_id(), name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the call opened last. There must be no text between."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ToolCallPart) and last.name is None:
            self._parts.pop()
            text = last.arguments + text
        self._parts.append(ToolCallPart(self._num_calls - 1, arguments=text))

    def settle(self) -> None:
        """Nothing follows any more."""
        if not self._beside_markup:
            self._text += self._space
        self._space.clear()

    def take(self) -> tuple[OutputPart, ...]:
        """The parts since it was last asked."""
        self._flush()
        parts = tuple(self._parts)
        self._parts.clear()
        return parts

    def _add(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._flush()
            self._space.clear()
            self._kind = kind
            self.markup()
        body = text.rstrip(_SPACE)
        space = text[len(body) :]
        if body:
            if self._beside_markup and kind not in self._begun:
                self._space.clear()
                body = body.lstrip(_SPACE)
            self._text += self._space
            self._text.append(body)
            self._space.clear()
            self._begun.add(kind)
            self._beside_markup = False
        if space:
            self._space.append(space)

    def _flush(self) -> None:
        if self._text:
            self._parts.append(self._kind("".join(self._text)))
            self._text.clear()
