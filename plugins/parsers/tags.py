"""Finding tags in a text that comes in pieces."""

from __future__ import annotations

import re

__all__ = ["Tags"]


class Tags:
    """A set of fixed texts to look for. Immutable, so a format keeps it as a constant."""

    def __init__(self, *tags: str) -> None:
        """Raises ValueError when a tag is empty or lies inside another: which of the two comes first would depend on
        how the text is cut."""
        if "" in tags or any(one != other and one in other for one in tags for other in tags):
            raise ValueError(f"no tag may be empty or lie inside another: {tags}")
        self._pattern = re.compile("|".join(map(re.escape, tags)) if tags else r"(?!)")
        self._beginnings = frozenset(tag[:size] for tag in tags for size in range(1, len(tag)))
        self._longest = max(map(len, tags), default=1) - 1

    def find(self, text: str, at: int) -> tuple[int, str | None]:
        """Where the next tag from `at` on begins, and the tag; or None, and where that begins which more text could
        make a tag: the end of the text when nothing could."""
        found = self._pattern.search(text, at)
        if found is not None:
            return found.start(), found.group()
        size = len(text)
        for start in range(max(at, size - self._longest), size):
            if text[start:] in self._beginnings:
                return start, None
        return size, None
