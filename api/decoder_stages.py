"""The parts of an incremental decoder that remember something from one token to the next.

A stage is pushed one piece and answers the pieces that are settled by it; `finish` answers what it still held. Each is
the streaming twin of one decoder of the `tokenizers` library. Stages belong to one stream and one thread.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

__all__ = ["ByteRuns", "Mapped", "Piece", "Pipeline", "Stage", "Trimmed", "Utf8"]

Piece = str | bytes

_REPLACEMENT: Final = "\ufffd"
_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


class Stage(Protocol):
    """`settled`: from now on the stage treats every piece alike, wherever in the text it comes. `seal` ends a prefix:
    it answers the whole characters held so far, and these will not come out again."""

    @property
    def settled(self) -> bool: ...
    def push(self, piece: Piece) -> Sequence[str]: ...
    def seal(self) -> Sequence[str]: ...
    def finish(self) -> Sequence[str]: ...


class Pipeline:
    """Stages in a row, from a piece to text."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    @property
    def settled(self) -> bool:
        return all(stage.settled for stage in self._stages)

    def push(self, piece: Piece) -> str:
        return self._through(0, (piece,))

    def seal(self) -> str:
        return "".join([self._through(n + 1, stage.seal()) for n, stage in enumerate(self._stages)])

    def finish(self) -> str:
        return "".join([self._through(n + 1, stage.finish()) for n, stage in enumerate(self._stages)])

    def _through(self, first: int, pieces: Sequence[Piece]) -> str:
        for stage in self._stages[first:]:
            if len(pieces) == 1:
                pieces = stage.push(pieces[0])
            else:
                pieces = [out for piece in pieces for out in stage.push(piece)]
        return "".join(pieces)  # type: ignore[arg-type]  # the last stage gives text only


class Utf8:
    """Bytes to text. Only the 1 to 3 bytes of an unfinished character are held; bytes that cannot become one come
    out as U+FFFD at once, one for each maximal part of a character, as decoding the whole would give it."""

    settled = True

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder("replace")

    def push(self, piece: Piece) -> Sequence[str]:
        assert isinstance(piece, bytes)
        return (self._decoder.decode(piece),)

    def seal(self) -> Sequence[str]:
        return ()

    def finish(self) -> Sequence[str]:
        return (self._decoder.decode(b"", True),)


class ByteRuns:
    """Byte-fallback tokens to text. A run of them is all or nothing: either the whole run is valid UTF-8, or every
    byte of it becomes one U+FFFD. So a valid run is held until a token of another kind ends it (nothing shorter can
    be exact), while a broken one comes out at once."""

    settled = True

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder("strict")
        self._text: list[str] = []
        self._num_bytes = 0  # of the run, held
        self._broken = False

    def push(self, piece: Piece) -> Sequence[str]:
        if isinstance(piece, str):
            return (*self._end(), piece) if self._num_bytes or self._broken else (piece,)
        if not self._broken:
            self._num_bytes += len(piece)
            try:
                self._text.append(self._decoder.decode(piece))
                return ()
            except UnicodeDecodeError:
                return self._break()
        return (_REPLACEMENT,)

    def seal(self) -> Sequence[str]:
        unfinished, _ = self._decoder.getstate()
        held, self._text = self._text, []
        self._num_bytes = len(unfinished)
        return held

    def finish(self) -> Sequence[str]:
        return self._end()

    def _break(self) -> Sequence[str]:
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._broken = True
        self._text = []
        self._decoder.reset()
        return (_REPLACEMENT,) * num_bytes

    def _end(self) -> Sequence[str]:
        unfinished, _ = self._decoder.getstate()
        out: Sequence[str] = self._break() if unfinished else ("".join(self._text),)
        self._decoder.reset()
        self._text = []
        self._num_bytes = 0
        self._broken = False
        return out


class Mapped:
    """A change made to every piece; where `first` is given, to the first piece that one instead."""

    def __init__(self, change: Callable[[str], str], first: Callable[[str], str] | None = None) -> None:
        self._change = change
        self._next = first or change
        self.settled = first is None

    def push(self, piece: Piece) -> Sequence[str]:
        assert isinstance(piece, str)
        changed = self._next(piece)
        self._next = self._change
        self.settled = True
        return (changed,)

    def seal(self) -> Sequence[str]:
        return ()

    def finish(self) -> Sequence[str]:
        return ()


class Trimmed:
    """Strip over the whole text: up to `start` times `content` is taken off its beginning, up to `stop` off its end.
    What may turn out to be the end is held."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._left = start
        self._stop = stop
        self._held = 0  # times content, at the end so far

    @property
    def settled(self) -> bool:
        return not self._left

    def push(self, piece: Piece) -> Sequence[str]:
        assert isinstance(piece, str)
        while self._left and piece:
            if piece[0] == self._content:
                piece = piece[1:]
                self._left -= 1
            else:
                self._left = 0
        if not self._stop or not piece:
            return (piece,)
        body = piece.rstrip(self._content)
        trailing = len(piece) - len(body)
        num_held, self._held = (self._held, trailing) if body else (0, self._held + trailing)
        released = max(0, self._held - self._stop)
        self._held -= released
        return (self._content * num_held + body + self._content * released,)

    def seal(self) -> Sequence[str]:
        return ()

    def finish(self) -> Sequence[str]:
        return ()
