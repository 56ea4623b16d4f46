"""Stop strings in a stream of text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

__all__ = ["StopStrings"]


class _Node:
    """A state of the automaton: the longest end of the text so far that begins some stop string.

    `text` is a stop string that begins with that end, `depth` characters long; `match` the longest stop string that
    ends here. `fallback` is the state of the next shorter such end.
    """

    __slots__ = ("depth", "fallback", "match", "next", "text")

    def __init__(self, text: str, depth: int) -> None:
        self.text = text
        self.depth = depth
        self.next: dict[str, _Node] = {}
        self.fallback: _Node | None = None
        self.match: str | None = None


class StopStrings:
    """Finds the first of several stop strings in a text that comes in chunks, and holds back what may begin one.

    The first to be complete wins; of several complete at the same character, the longest. So the outcome depends on
    the text alone: not on how it is cut, and not on the order of the list. Takes linear time for any text
    (Aho-Corasick). What is held is exactly the longest end of the text that begins a stop string.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself goes out as the end of the text. Raises ValueError for an empty stop."""
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._include = include
        self._root = _automaton(stops)
        self._state = self._root
        self._matched: str | None = None
        first = "".join(sorted(self._root.next))
        self._begins = re.compile(f"[{re.escape(first)}]") if first else None

    def feed(self, text: str) -> tuple[str, str | None]:
        """What may go out, and the stop string found. From then on nothing goes out any more: neither the rest of
        this chunk nor what is fed later."""
        if self._matched is not None:
            return "", self._matched
        if self._begins is None:
            return text, None
        held, at, size = self._state, 0, len(text)
        node = held
        while at < size:
            if node is self._root:
                if (found := self._begins.search(text, at)) is None:
                    break
                at = found.start()
            node = self._step(node, text[at])
            at += 1
            if node.match is not None:
                self._matched = node.match
                kept = held.depth + at - (0 if self._include else len(node.match))
                return _released(held, text, kept), node.match
        self._state = node
        return _released(held, text, held.depth + size - node.depth), None

    def flush(self) -> str:
        """The text still held, once no more comes; nothing after a match."""
        held, self._state = self._state, self._root
        return "" if self._matched is not None else held.text[: held.depth]

    def _step(self, node: _Node, character: str) -> _Node:
        state: _Node | None = node
        while state is not None:
            if (after := state.next.get(character)) is not None:
                return after
            state = state.fallback
        return self._root


def _released(held: _Node, text: str, count: int) -> str:
    """The first `count` characters of the held text and `text`. What is held is never stored: its state spells it."""
    if count <= held.depth:
        return held.text[:count]
    return held.text[: held.depth] + text[: count - held.depth]


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node("", 0)
    for stop in stops:
        node = root
        for depth, character in enumerate(stop, 1):
            node = node.next.setdefault(character, _Node(stop, depth))
        node.match = stop
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for character, child in node.next.items():
            state = node.fallback
            while state is not None and character not in state.next:
                state = state.fallback
            child.fallback = root if state is None else state.next[character]
            child.match = child.match or child.fallback.match
            waiting.append(child)
    return root
