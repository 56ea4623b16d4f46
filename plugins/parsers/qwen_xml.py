"""Calls in the way of XML, as Qwen3-Coder and Seed-OSS write them:

    <tool_call><function=f><parameter=a>value</parameter></function></tool_call>

Values are plain text; the tool's schema says which of them are strings, and these go out as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tickertape.plugins import ModelSigns, OutputParserSpec, ParserContext, hookimpl
from tickertape.plugins.parsers.closing import read_closing
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags
from tickertape.plugins.parsers.xml_values import escaped, is_text, json_value, property_schema

__all__ = ["API", "XmlFormat", "register_output_parsers"]

API = (1, 0)

_FUNCTION: Final = "<function="
_FUNCTION_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"
_VALUE_ENDS: Final = Tags(_PARAMETER_END)
_NAME_ENDS: Final = Tags(">", "<", "\n")


class XmlFormat:
    """`start` and `end` stand around each call; a model that leaves them out is understood."""

    def __init__(self, start: str, end: str) -> None:
        self.tags = (start, end)
        self._starts = Tags(start, _FUNCTION)

    def make(self, context: ParserContext) -> Machine:
        return Machine(self._read, context)

    def _read(self, reader: Reader, sink: PartSink) -> Steps[None]:
        start, end = self.tags
        while (yield from reader.until(self._starts, sink.content)) is not None:
            reader.attempt()
            if (yield from reader.expect(start)):
                yield from reader.skip_space()
            name = yield from _read_name(reader, _FUNCTION)
            yield from reader.skip_space()
            mark = yield from reader.expect(_PARAMETER, _FUNCTION_END)
            if name not in sink.tools or mark is None:
                sink.content(reader.abandon())
                continue
            reader.commit()
            sink.open_call(name)
            if (yield from self._read_parameters(reader, sink, name, mark)):
                yield from read_closing(reader, sink, end)

    def _read_parameters(self, reader: Reader, sink: PartSink, tool: str, mark: str | None) -> Steps[bool]:
        """Whether the call came to its end. `mark`: what was taken last."""
        before = "{"
        while mark == _PARAMETER:
            reader.attempt()
            name = yield from _read_name(reader, "")
            if not name:
                sink.content(_PARAMETER + reader.abandon())
                return False
            reader.commit()
            sink.arguments(f'{before}"{escaped(name)}": ')
            schema = property_schema(sink.tools[tool], name)
            read = self._read_text if is_text(schema) else self._read_value
            mark = yield from read(reader, sink, schema)
            before = ", "
        if not mark:
            return False
        sink.arguments("{}" if before == "{" else "}")
        return True

    def _read_text(self, reader: Reader, sink: PartSink, schema: object) -> Steps[str | None]:
        """A string, handed on as it comes. A newline beside either tag is layout."""
        held: list[str] = []  # a last newline

        def emit(text: str) -> None:
            text = "".join(held) + text
            held[:] = ["\n"] if text.endswith("\n") else []
            if body := text.removesuffix("\n"):
                sink.arguments(escaped(body))

        sink.arguments('"')
        yield from reader.expect("\n")
        mark = yield from self._read_to_end(reader, emit)
        if mark is not None:
            sink.arguments('"')
        return mark

    def _read_value(self, reader: Reader, sink: PartSink, schema: object) -> Steps[str | None]:
        """Anything else, handed on when it is whole; one that was cut off goes out as it is."""
        pieces: list[str] = []
        yield from reader.expect("\n")
        mark = yield from self._read_to_end(reader, pieces.append)
        text = "".join(pieces).removesuffix("\n")
        if mark is not None:
            text = json_value(text, schema)
        if text:
            sink.arguments(text)
        return mark

    def _read_to_end(self, reader: Reader, emit: Callable[[str], object]) -> Steps[str | None]:
        """Hands on a value. An end tag that nothing of the call follows is part of it: models write XML too. Gives what
        was taken after it, another parameter's tag or the end of the call; "" when the text ends there, None when it
        ends within the value."""
        while (yield from reader.until(_VALUE_ENDS, emit)) is not None:
            reader.attempt()
            yield from reader.expect(_PARAMETER_END)
            yield from reader.skip_space()
            mark = yield from reader.expect(_PARAMETER, _FUNCTION_END, self.tags[1])
            if mark is not None or not (yield from reader.peek()):
                reader.commit()
                return mark or ""
            emit(reader.abandon())
        return None


def _read_name(reader: Reader, tag: str) -> Steps[str]:
    """Takes `tag`, a name and `>`. "" when they are not here."""
    if tag and not (yield from reader.expect(tag)):
        return ""
    name, _ = yield from reader.before(_NAME_ENDS)
    return name.strip().strip("\"'") if (yield from reader.expect(">")) else ""


def _qwen(signs: ModelSigns) -> int:
    return 3 if _FUNCTION in signs.template and "<seed:" not in signs.template else 0


def _seed(signs: ModelSigns) -> int:
    return 3 if _FUNCTION in signs.template and signs.mention("<seed:tool_call>") else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    for name, detects, format in (
        ("qwen_xml", _qwen, XmlFormat("<tool_call>", "</tool_call>")),
        ("seed_xml", _seed, XmlFormat("<seed:tool_call>", "</seed:tool_call>")),
    ):
        register(
            OutputParserSpec(
                name=name,
                kind="tools",
                make=format.make,
                detects=detects,
                shows=format.tags,
                triggers=(format.tags[0], _FUNCTION),
                summary=f"{format.tags[0]}<function=name><parameter=name>value</parameter></function>{format.tags[1]}",
            )
        )
