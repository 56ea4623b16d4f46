"""gpt-oss: messages on channels. `analysis` is reasoning, `final` and `commentary` are content, and a message to
`functions.NAME` is a call.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

openai-harmony reads token ids of its own vocabulary, which it downloads; this reads the text, with the markers shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tickertape.plugins import CallFormat, ModelSigns, OutputParserSpec, ParserContext, hookimpl
from tickertape.plugins.parsers.machine import Machine
from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink
from tickertape.plugins.parsers.tags import Tags

__all__ = ["API", "make", "read", "register_output_parsers"]

API = (1, 0)

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_MARKS: Final = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
_AFTER_HEADER: Final = Tags(_MESSAGE, *_ENDS)
_AFTER_BODY: Final = Tags(_START, *_ENDS)
_ROLE: Final = f"{_START}assistant"
_TO: Final = "to="
_FUNCTIONS: Final = "functions."
_CHANNELS: Final = ("analysis", "commentary", "final")


def make(context: ParserContext) -> Machine:
    machine = Machine(read, context)
    # What the prompt has written of the message that the model goes on with is the beginning of its header.
    _, opened, header = (context.prompt_end or "").rpartition(_ROLE)
    if opened and header.startswith(_CHANNEL) and _AFTER_HEADER.find(header, 0)[0] >= len(header) - len(_MESSAGE):
        machine.feed(header, final=False)
    return machine


def read(reader: Reader, sink: PartSink) -> Steps[None]:
    while (yield from reader.peek()):
        reader.attempt()
        yield from reader.skip_space()
        if not (yield from reader.expect(_ROLE, _CHANNEL, _TO + _FUNCTIONS)):
            yield from reader.expect(_START)  # of a message that is not the model's to write
            sink.content(reader.abandon())
            yield from reader.until(_AFTER_BODY, sink.content)
        elif (yield from reader.until(_AFTER_HEADER, _ignore)) == _MESSAGE:
            yield from _read_body(reader, sink, reader.taken)
        else:
            sink.content(reader.abandon())
        if (yield from reader.expect(*_ENDS)):
            sink.markup()


def _read_body(reader: Reader, sink: PartSink, header: str) -> Steps[None]:
    yield from reader.expect(_MESSAGE)
    channel, recipient = _address(header)
    function = recipient.removeprefix(_FUNCTIONS)
    if function != recipient and function in sink.tools:
        reader.commit()
        sink.open_call(function)
        yield from reader.skip_space()
        if (yield from reader.peek()) == "<" and (yield from reader.expect(*_ENDS)):
            sink.arguments("{}")
        yield from reader.until(_AFTER_BODY, sink.arguments)
    elif recipient or channel not in _CHANNELS:
        sink.content(reader.abandon())
        yield from reader.until(_AFTER_BODY, sink.content)
    else:
        reader.commit()
        emit = sink.reasoning if channel == "analysis" else sink.content
        sink.markup()
        emit("\n")  # between two messages of one kind
        yield from reader.until(_AFTER_BODY, emit)


def _address(header: str) -> tuple[str, str]:
    """The channel and the recipient that a header names, each "" where it names none. No channel when there is a word
    in it that is not known."""
    channel = recipient = ""
    words = iter(header.removeprefix(_ROLE).replace(_CHANNEL, f" {_CHANNEL} ").replace(_CONSTRAIN, " ").split())
    for word in words:
        if word == _CHANNEL and not channel:
            channel = next(words, "")
        elif word.startswith(_TO) and not recipient:
            recipient = word.removeprefix(_TO)
        elif word != "json":
            return "", ""
    return channel, recipient


def _ignore(_: str) -> None:
    """The reader's attempt remembers it."""


def _detects(signs: ModelSigns) -> int:
    return 3 if signs.mention(_CHANNEL, _MESSAGE) else 0


@hookimpl
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    register(
        OutputParserSpec(
            name="gpt_oss",
            kind="both",
            make=make,
            detects=_detects,
            shows=_MARKS,
            triggers=(f"{_CHANNEL}commentary to=functions.", f"{_ROLE} to=functions."),
            call_format=CallFormat(
                open=f"{_CHANNEL}commentary to=functions.",
                middle=f" {_CONSTRAIN}json{_MESSAGE}",
                close="<|call|>",
                between=_ROLE,
            ),
            summary="harmony: analysis, commentary and final channels",
        )
    )
