"""Reading a text that is still being written.

A format is a generator over a `Reader`: it yields whenever what it has does not settle what comes next, and goes on
when there is more. So a format reads as if the text were whole, and how the text was cut cannot make a difference as
long as every method here decides by the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeAlias, TypeVar

from tickertape.plugins.parsers.tags import Tags

__all__ = ["SPACE", "Reader", "Scan", "Steps"]

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A part of a format that results in a T once there is text enough."""

SPACE: Final = re.compile(r"[ \t\r\n]+")
_NOTHING: Final = Tags()


class Scan(Protocol):
    """Follows a construct to its end, across pieces."""

    done: bool
    broken: bool

    def scan(self, text: str, at: int) -> int:
        """The place in `text` up to which the construct goes, starting at `at`."""
        ...


class Reader:
    """The text of one choice from front to back. Holds no more of it than what is not settled."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._final = False
        self._attempt: list[str] | None = None

    def push(self, text: str, *, final: bool) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0
        self._final = final

    # -- attempts: text that was taken and may yet turn out to be content ------------------------------------------

    def attempt(self) -> None:
        """From here on remembers what is taken."""
        self._attempt = []

    @property
    def taken(self) -> str:
        """What was taken since `attempt`."""
        return "".join(self._attempt or ())

    def commit(self) -> None:
        self._attempt = None

    def abandon(self) -> str:
        """Ends the attempt with what it took. That is not read a second time, which keeps the work linear."""
        taken, self._attempt = self.taken, None
        return taken

    # -- steps -----------------------------------------------------------------------------------------------------

    def peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        while self._at == len(self._text) and not self._final:
            yield
        return self._text[self._at : self._at + 1]

    def until(self, tags: Tags, emit: Callable[[str], object]) -> Steps[str | None]:
        """Hands on the text before the next of `tags` as it is settled. The tag, which is not taken; None at the end
        of the text."""
        while True:
            start, tag = tags.find(self._text, self._at)
            if tag is None and self._final:
                start = len(self._text)
            if start > self._at:
                emit(self._take(start))
            if tag is not None or self._final:
                return tag
            yield

    def before(self, tags: Tags) -> Steps[tuple[str, str | None]]:
        """As `until`, with the text in one piece."""
        pieces: list[str] = []
        tag = yield from self.until(tags, pieces.append)
        return "".join(pieces), tag

    def rest(self, emit: Callable[[str], object]) -> Steps[None]:
        """Hands on everything that still comes."""
        yield from self.until(_NOTHING, emit)

    def expect(self, *texts: str) -> Steps[str | None]:
        """Takes that one of `texts` which comes next, if one does. None of them may begin another."""
        while True:
            for text in texts:
                if self._text.startswith(text, self._at):
                    self._take(self._at + len(text))
                    return text
            size = len(self._text) - self._at
            if self._final or not any(size < len(text) and self._text.endswith(text[:size]) for text in texts):
                return None
            yield

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Takes characters as long as `pattern`, a run of a class of characters, goes on."""
        taken: list[str] = []
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None:
                taken.append(self._take(found.end()))
            if self._at < len(self._text) or self._final:
                return "".join(taken)
            yield

    def skip_space(self) -> Steps[None]:
        yield from self.run(SPACE)

    def follow(self, scan: Scan, emit: Callable[[str], object]) -> Steps[bool]:
        """Hands on what `scan` follows as it comes. Whether it came to its end."""
        while True:
            end = scan.scan(self._text, self._at)
            if end > self._at:
                emit(self._take(end))
            if scan.done or scan.broken or self._final:
                return scan.done
            yield

    def _take(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if self._attempt is not None:
            self._attempt.append(taken)
        return taken
