"""The tag that closes a call, which some models leave out."""

from __future__ import annotations

from tickertape.plugins.parsers.reader import Reader, Steps
from tickertape.plugins.parsers.sink import PartSink

__all__ = ["read_closing"]


def read_closing(reader: Reader, sink: PartSink, tag: str) -> Steps[None]:
    """Takes `tag` and the white space before it. Where something else stands, both are content."""
    reader.attempt()
    yield from reader.skip_space()
    if (yield from reader.expect(tag)):
        reader.commit()
    else:
        sink.content(reader.abandon())
