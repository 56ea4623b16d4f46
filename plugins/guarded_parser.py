"""A registered output parser behind a guard: one that raises turns into one that finds nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tickertape.core.output_parser import (
    ContentPart,
    ModelSigns,
    OutputParser,
    OutputParserSpec,
    OutputPart,
    ParserContext,
)
from tickertape.plugins.faults import Faults

__all__ = ["guarded_parser"]


def guarded_parser(plugin: str, spec: OutputParserSpec, faults: Faults) -> OutputParserSpec:
    """The same parser, whose failures are reported as its plugin's and go no further."""

    def make(context: ParserContext) -> OutputParser:
        if faults.disabled(plugin):
            return _Guarded(plugin, spec.name, None, faults)
        try:
            return _Guarded(plugin, spec.name, spec.make(context), faults)
        except Exception as error:
            faults.report(plugin, f"parser {spec.name!r}", error)
            return _Guarded(plugin, spec.name, None, faults)

    def detects(signs: ModelSigns) -> int:
        try:
            return spec.detects(signs)
        except Exception as error:
            faults.report(plugin, f"parser {spec.name!r}", error)
            return 0

    return replace(spec, make=make, detects=detects)


class _Guarded:
    """After the first failure, and without a parser, all text is content. What the parser held back when it failed is
    lost: nobody else knows of it."""

    def __init__(self, plugin: str, name: str, parser: OutputParser | None, faults: Faults) -> None:
        self._plugin = plugin
        self._name = name
        self._parser = parser
        self._faults = faults
        self._ended = False

    def feed(self, text: str, final: bool) -> Sequence[OutputPart]:
        if self._ended:
            raise ValueError("fed after the last piece")
        self._ended = final
        if self._parser is not None:
            try:
                return self._parser.feed(text, final)
            except Exception as error:
                self._faults.report(self._plugin, f"parser {self._name!r}", error)
                self._parser = None
        return (ContentPart(text),) if text else ()
