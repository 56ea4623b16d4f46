"""A format at work on one choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tickertape.plugins import OutputPart, ParserContext
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink

__all__ = ["Format", "Machine"]

Format: TypeAlias = Callable[[Reader, PartSink], Steps[None]]
"""Reads the whole text of a choice, to its end."""


class Machine:
    """An OutputParser that runs a format."""

    def __init__(self, format: Format, context: ParserContext) -> None:
        self._reader = Reader()
        self._sink = PartSink(context)
        self._steps = format(self._reader, self._sink)
        self._ended = False

    def feed(self, text: str, final: bool) -> tuple[OutputPart, ...]:
        if self._ended:
            raise ValueError("the text has ended already")
        self._ended = final
        self._reader.push(text, final=final)
        next(self._steps, None)
        if final:
            self._sink.settle()
        return self._sink.take()
