"""Mistral's calls, after `[TOOL_CALLS]`: a JSON list up to tokenizer version 7, name and arguments from version 11 on.

mistral-common reads calls from the token ids of a whole answer; this reads the same spellings from text as it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from tickertape.plugins import CallFormat, ModelSigns, OutputParserSpec, hookimpl
from tickertape.plugins.parsers.call_objects import read_arguments, read_calls
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "read", "register_output_parsers"]

API = (1, 0)

_CALLS: Final = "[TOOL_CALLS]"
_ID: Final = "[CALL_ID]"
_ARGUMENTS: Final = "[ARGS]"
_SHOWN: Final = (_CALLS, _ID, _ARGUMENTS)
_STARTS: Final = Tags(_CALLS)
_AFTER_NAME: Final = Tags(_ID, _ARGUMENTS, _CALLS, "{")
_ID_TEXT: Final = re.compile(r"\s*[A-Za-z0-9_-]+\s*")
_AFTER_ID: Final = Tags(_ARGUMENTS, _CALLS, "{")


def read(reader: Reader, sink: PartSink) -> Steps[None]:
    while (yield from reader.until(_STARTS, sink.content)) is not None:
        reader.attempt()
        yield from reader.expect(_CALLS)
        yield from reader.skip_space()
        form = _read_named if (yield from reader.peek()) not in ("[", "{") else read_calls
        if not (yield from form(reader, sink, end=_STARTS if form is _read_named else None)):
            sink.content(reader.abandon())


def _read_named(reader: Reader, sink: PartSink, *, end: Tags | None) -> Steps[bool]:
    """`name[ARGS]{...}`, with or without `[CALL_ID]id` (the ids of calls are the server's) and `[ARGS]`."""
    name, mark = yield from reader.before(_AFTER_NAME)
    if name.strip() not in sink.tools:
        return False
    if mark == _ID:
        yield from reader.expect(_ID)
        id, mark = yield from reader.before(_AFTER_ID)
        if not _ID_TEXT.fullmatch(id):
            return False
    if mark == _ARGUMENTS:
        yield from reader.expect(_ARGUMENTS)
        yield from reader.skip_space()
    if (yield from reader.peek()) != "{":
        return False
    reader.commit()
    sink.open_call(name.strip())
    yield from read_arguments(reader, sink, end=end)
    return True


def _lists(signs: ModelSigns) -> int:
    return 2 if signs.mention(_CALLS) else 0


def _names(signs: ModelSigns) -> int:
    return 3 if signs.mention(_CALLS, _ARGUMENTS) else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    for name, detects, format in (
        (
            "mistral",
            _lists,
            CallFormat(
                before="[TOOL_CALLS][", open='{"name": "', middle='", "arguments": ', close="}", between=", ", after="]"
            ),
        ),
        ("mistral_v11", _names, CallFormat(open=_CALLS, middle=_ARGUMENTS, close="")),
    ):
        register(
            OutputParserSpec(
                name=name,
                kind="tools",
                make=partial(Machine, read),
                detects=detects,
                shows=_SHOWN,
                triggers=(_CALLS,),
                call_format=format,
                summary=format.spell([("name", "{...}")]),
            )
        )
