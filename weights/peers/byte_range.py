"""The Range header, of which only a single range is taken."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["parse_range"]

_RANGE: Final = re.compile(
    r"bytes=(?:(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})?|-(?P<suffix>[0-9]{1,18}))", re.ASCII
)


def parse_range(value: str, size_bytes: int) -> tuple[int, int] | None:
    """The [start, end) that a Range header asks for; None when it cannot be given (several ranges, another unit,
    nothing inside the file). A last byte past the end means to the end, as RFC 9110 has it."""
    if (match := _RANGE.fullmatch(value)) is None:
        return None
    if match["suffix"] is not None:
        start, end = max(0, size_bytes - int(match["suffix"])), size_bytes
    else:
        start, last = int(match["first"]), match["last"]
        end = size_bytes if last is None else min(size_bytes, int(last) + 1)
    return (start, end) if start < end else None
