"""Calls as a list of Python calls at the start of the answer, `[f(a=1), g()]`: Llama 3.2 and 4, Gemma 3, and others.

A call goes out when it is whole: only then is it known to be one, and its arguments have to be put as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.plugins import ModelSigns, OutputParserSpec, hookimpl
from tickertape.plugins.parsers.closing import read_closing
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.python_literals import CallScan, keyword_arguments
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "read", "register_output_parsers"]

API = (1, 0)

_STARTS: Final = ("<|python_start|>", "<|python_tag|>")
_END: Final = "<|python_end|>"
_START_TAGS: Final = Tags(*_STARTS)
_NAME: Final = re.compile(r"[\w.\-]+")
_EXAMPLE: Final = re.compile(r"\[\w+\(\w+=")


def read(reader: Reader, sink: PartSink) -> Steps[None]:
    yield from _read_list(reader, sink)
    while (yield from reader.until(_START_TAGS, sink.content)) is not None:
        yield from _read_list(reader, sink)


def _read_list(reader: Reader, sink: PartSink) -> Steps[None]:
    """Calls up to the end of the list, or to what is none."""
    reader.attempt()
    yield from reader.skip_space()
    if (yield from reader.expect(*_STARTS)):
        yield from reader.skip_space()
    mark = yield from reader.expect("[")
    while mark in ("[", ","):
        yield from reader.skip_space()
        if not (yield from _read_call(reader, sink)):
            break
        reader.attempt()
        yield from reader.skip_space()
        mark = yield from reader.expect(",", "]")
    if mark == "]":
        yield from read_closing(reader, sink, _END)
    else:
        sink.content(reader.abandon())


def _read_call(reader: Reader, sink: PartSink) -> Steps[bool]:
    name = yield from reader.run(_NAME)
    if name not in sink.tools or (yield from reader.peek()) != "(":
        return False
    pieces: list[str] = []
    if not (yield from reader.follow(CallScan(), pieces.append)):
        return False
    arguments = keyword_arguments("".join(pieces))
    if arguments is None:
        return False
    reader.commit()
    sink.open_call(name)
    sink.arguments(arguments)
    return True


def _detects(signs: ModelSigns) -> int:
    return 3 if _EXAMPLE.search(signs.template) else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    register(
        OutputParserSpec(
            name="pythonic",
            kind="tools",
            make=partial(Machine, read),
            detects=_detects,
            shows=(*_STARTS, _END),
            triggers=_STARTS,
            summary='[name(a=1, b="x"), ...], with or without <|python_start|>',
        )
    )
