"""A range of an object, read from whichever peers have it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

from tickertape.weights.fetch.ports import PeerFault
from tickertape.weights.peers.attempt import BLOCK_BYTES, Attempt, Refused, Span
from tickertape.weights.peers.pace import Pace
from tickertape.weights.peers.peer import Peer
from tickertape.weights.peers.selection import Choice, Selection

__all__ = ["Reading"]


class Reading:
    """One call of `Peers.read`. Used by one thread.

    There is one attempt at a time, or two while the first is late: then whoever first has the next block goes on, and
    the other's connection is closed. What breaks off is taken up where it broke.
    """

    def __init__(
        self,
        span: Span,
        selection: Selection,
        begin: Callable[[Peer, Span, threading.Condition], Attempt],
        pace: Pace,
        pause: Callable[[float], bool],
        busy_patience_s: float,
    ) -> None:
        self._span = span
        self._selection = selection
        self._begin = begin
        self._pace = pace
        self._pause = pause  # True when woken by the end of everything
        self._patience_s = busy_patience_s
        self._wake = threading.Condition()
        self._attempts: dict[Attempt, Peer] = {}
        self._useless: set[Peer] = set()

    def blocks(self) -> Generator[memoryview, None, None]:
        """Raises PeerFault. A block is valid until the next one is asked for."""
        position = self._span.start
        try:
            while position < self._span.end:
                if not self._attempts:
                    self._ask_somebody(position)
                attempt = self._first_with_something()
                if attempt is None:
                    self._hedge(position)
                elif (taken := attempt.take()) is None:
                    self._conclude(attempt)
                else:
                    block, seconds = taken
                    self._settle_on(attempt)
                    self._note(attempt, len(block), seconds)
                    yield block
                    position += len(block)
                    attempt.recycle(block)
        finally:
            for attempt in list(self._attempts):
                self._abandon(attempt)

    def _ask_somebody(self, position: int) -> None:
        """Waits a little while everybody is busy."""
        waited_s = 0.0
        while not isinstance(choice := self._choose(position), Choice):
            if choice is None:
                raise PeerFault("no peer could give the rest of a file they offered")
            if waited_s + choice > self._patience_s:
                raise PeerFault("all peers that have a file are busy", retry_after_s=choice, code="PeersBusy")
            if self._pause(choice):
                raise PeerFault("peers are not asked any more")
            waited_s += choice
        self._pace.asked()
        self._try(choice, position)

    def _hedge(self, position: int) -> None:
        if len(self._attempts) == 1:
            choice = self._choose(position)
            if isinstance(choice, Choice) and self._pace.may_hedge():
                self._try(choice, position)

    def _choose(self, position: int) -> Choice | float | None:
        return self._selection.choose(self._from(position), self._useless | set(self._attempts.values()))

    def _try(self, choice: Choice, position: int) -> None:
        span = Span(self._span.sha256, position, choice.end, self._span.size_bytes)
        choice.peer.begin()
        self._attempts[self._begin(choice.peer, span, self._wake)] = choice.peer

    def _first_with_something(self) -> Attempt | None:
        """None when all of them are late."""
        with self._wake:
            self._wake.wait_for(self._ready, self._pace.patience_s())
            return self._ready()

    def _ready(self) -> Attempt | None:
        return next((attempt for attempt in self._attempts if attempt.has_something), None)

    def _settle_on(self, winner: Attempt) -> None:
        for attempt in list(self._attempts):
            if attempt is not winner:
                self._abandon(attempt)

    def _note(self, attempt: Attempt, num_bytes: int, seconds: float) -> None:
        if num_bytes == BLOCK_BYTES:
            self._pace.took(seconds)
        self._selection.gave(self._attempts[attempt], attempt.span, num_bytes, seconds)

    def _conclude(self, attempt: Attempt) -> None:
        peer = self._attempts[attempt]
        self._abandon(attempt)
        if attempt.error is not None:
            self._selection.failed(peer, attempt.span, attempt.error)
            if not isinstance(attempt.error, Refused):
                self._useless.add(peer)

    def _abandon(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt).end()
        attempt.cancel()

    def _from(self, position: int) -> Span:
        return Span(self._span.sha256, position, self._span.end, self._span.size_bytes)
