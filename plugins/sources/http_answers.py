"""What HTTP answers mean to somebody who wants the bytes of a file: refusals, ranges, validators. Nothing here asks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from tickertape.plugins import FileEntry, OriginBusy, OriginChanged, OriginError, StartupError

__all__ = ["check_answer", "conditions", "refusal", "retry_after_s", "shown", "total_bytes", "validator"]

_CONTENT_RANGE: Final = re.compile(r"^\s*bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)\s*$", re.IGNORECASE)
_PASSING: Final = (408, 425)  # beside the 5xx


def shown(url: str) -> str:
    """`url` as a message may have it: the query can be a signature, the user a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refusal(status: int, headers: Mapping[str, str], what: str) -> StartupError:
    """The error that an answer without the file stands for; `what` was asked for."""
    if status in (429, 503):
        said = "too many requests" if status == 429 else "not available now"
        return OriginBusy(f"{what}: the origin says {said} ({status})", retry_after_s=retry_after_s(headers))
    if status >= 500 or status in _PASSING:
        return OriginError(f"{what}: the origin failed ({status})")
    if status in (412, 416):
        return OriginChanged(f"{what}: it is not what it was when its files were listed ({status})")
    if status == 401:
        return StartupError(f"{what}: the origin wants credentials, or does not take those it got", code="Unauthorized")
    if status == 403:
        return StartupError(f"{what}: access is denied", code="Forbidden")
    if status in (404, 410):
        return StartupError(f"{what}: not found", code="NotFound")
    return StartupError(f"{what}: the origin answered {status}", code="UnexpectedAnswer")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What Retry-After asks for, in seconds from now: it may hold a number or a date. A date is read by the clock of
    who sent it, where the answer has a Date. None without a word that can be read."""
    word = headers.get("Retry-After", "").strip()
    if word.isascii() and word.isdigit():
        return float(word)
    until = _seconds(word)
    if until is None:
        return None
    now = _seconds(headers.get("Date", ""))
    return max(0.0, until - (time.time() if now is None else now))


def validator(headers: Mapping[str, str]) -> str | None:
    """What tells this state of a file from another: its ETag, else the date of its last change."""
    return headers.get("ETag") or headers.get("Last-Modified")


def conditions(etag: str | None) -> dict[str, str]:
    """Headers that have an origin refuse when the file is another one by now. A weak etag cannot be asked for."""
    if etag is None or etag.startswith("W/"):
        return {}
    if _seconds(etag) is not None:
        return {"If-Unmodified-Since": etag}
    return {"If-Match": etag}


def total_bytes(status: int, headers: Mapping[str, str]) -> int | None:
    """How large the whole file is, by an answer to a request for some of it."""
    if status == 200:
        length = headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() else None
    found = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
    return int(found[3]) if found is not None and found[3] != "*" else None


def check_answer(
    status: int, headers: Mapping[str, str], entry: FileEntry, start: int, end: int | None, what: str
) -> None:
    """Raises OriginChanged unless a 200 or 206 announces the bytes [start, end) of `entry`; with code UnexpectedAnswer
    where the file is the same for all one knows, and the host does not do as asked. An `end` of None means to the end
    of a file whose size nobody knew."""
    if headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
        raise _unexpected(f"{what}: it came in another encoding than it was asked for")
    total = total_bytes(status, headers)
    if None not in (total, entry.size_bytes) and total != entry.size_bytes:
        raise OriginChanged(f"{what}: it has {total} bytes, and had {entry.size_bytes} when its files were listed")
    came = headers.get("Last-Modified" if _seconds(entry.etag or "") is not None else "ETag")
    if entry.etag is not None and came is not None and _opaque(came) != _opaque(entry.etag):
        raise OriginChanged(f"{what}: it was replaced after its files were listed")
    if status == 206:
        found = _CONTENT_RANGE.match(headers.get("Content-Range", ""))
        first, last = (int(found[1]), int(found[2])) if found is not None and found[1] else (-1, -1)
        if first != start or (end is not None and last != end - 1):
            raise _unexpected(f"{what}: another range came than was asked for")
    elif start > 0 or end not in (None, entry.size_bytes):
        raise _unexpected(f"{what}: a part was asked for, and the whole came")


def _unexpected(message: str) -> OriginChanged:
    """It may be for a moment only, or the listing will tell what the host cannot do: planning anew finds out."""
    return OriginChanged(message, code="UnexpectedAnswer")


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/")


def _seconds(date: str) -> float | None:
    """An HTTP date as Unix time."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
