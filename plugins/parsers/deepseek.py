"""DeepSeek's calls: a name and a JSON object between its own marks. V3 and R1 fence the object as a block of code after
a line with the name, V3.1 writes it as it is; both are read by either name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.plugins import CallFormat, ModelSigns, OutputParserSpec, hookimpl
from tickertape.plugins.parsers.call_objects import read_arguments
from tickertape.plugins.parsers.closing import read_closing
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "read", "register_output_parsers"]

API = (1, 0)

_CALLS: Final = "<｜tool▁calls▁begin｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_CALL_END: Final = "<｜tool▁call▁end｜>"
_CALLS_END: Final = "<｜tool▁calls▁end｜>"
_MARKS: Final = (_CALLS, _CALL, _SEPARATOR, _CALL_END, _CALLS_END)
_STARTS: Final = Tags(_CALLS, _CALL)
_ANY: Final = Tags(*_MARKS)
_ENDS: Final = Tags(_CALL_END, _CALLS_END)
_LINE: Final = Tags("\n", "{", *_MARKS)


def read(reader: Reader, sink: PartSink) -> Steps[None]:
    while (yield from reader.until(_STARTS, sink.content)) is not None:
        reader.attempt()
        if (yield from reader.expect(_CALLS)):
            yield from reader.skip_space()
        if not (yield from reader.expect(_CALL)) or not (yield from _read_call(reader, sink)):
            sink.content(reader.abandon())
            continue
        yield from read_closing(reader, sink, _CALLS_END)


def _read_call(reader: Reader, sink: PartSink) -> Steps[bool]:
    name, mark = yield from reader.before(_ANY)
    if mark != _SEPARATOR:
        return False
    yield from reader.expect(_SEPARATOR)
    yield from reader.skip_space()
    fenced = (yield from reader.peek()) != "{"
    if fenced:
        if name.strip() != "function":  # the kind of call
            return False
        name, _ = yield from reader.before(_LINE)
        yield from reader.skip_space()
        if not (yield from reader.expect("```json")):
            return False
        yield from reader.skip_space()
        if (yield from reader.peek()) != "{":
            return False
    if name.strip() not in sink.tools:
        return False
    reader.commit()
    sink.open_call(name.strip())
    yield from read_arguments(reader, sink, end=_ENDS)
    if fenced:
        yield from read_closing(reader, sink, "```")
    yield from read_closing(reader, sink, _CALL_END)
    return True


def _fenced(signs: ModelSigns) -> int:
    return 3 if signs.mention(_CALL) and "```json" in signs.template else 0


def _plain(signs: ModelSigns) -> int:
    return 2 if signs.mention(_CALL) else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    for name, detects, format in (
        (
            "deepseek_v3",
            _fenced,
            CallFormat(
                before=_CALLS,
                open=f"{_CALL}function{_SEPARATOR}",
                middle="\n```json\n",
                close=f"\n```{_CALL_END}",
                between="\n",
                after=_CALLS_END,
            ),
        ),
        (
            "deepseek_v31",
            _plain,
            CallFormat(before=_CALLS, open=_CALL, middle=_SEPARATOR, close=_CALL_END, after=_CALLS_END),
        ),
    ):
        register(
            OutputParserSpec(
                name=name,
                kind="tools",
                make=partial(Machine, read),
                detects=detects,
                shows=_MARKS,
                triggers=(_CALLS, _CALL),
                call_format=format,
                summary=" ".join(format.spell([("name", "{...}")]).split()),
            )
        )
