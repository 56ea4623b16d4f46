"""Files behind URLs, read in ranges: the `Origin` of every source that speaks plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import urllib3

from tickertape.plugins import FileEntry, OriginError, StartupError
from tickertape.plugins.sources.http_answers import check_answer, conditions, refusal, shown
from tickertape.plugins.sources.http_client import HttpClient, origin_of

__all__ = ["HttpOrigin", "Place", "Refusal"]

_MAX_PIECE_BYTES: Final = 1 << 20
_LAPSED: Final = (400, 401, 403, 404, 410)
"""What a signed URL may answer once its time is over."""

Refusal = Callable[[int, Mapping[str, str], str], StartupError]
"""From status, headers and what was asked for to the error that it stands for."""


class Place(NamedTuple):
    """Where a file is asked for. `private` headers go to this URL's origin alone."""

    url: str
    private: Mapping[str, str] = MappingProxyType({})


class HttpOrigin:
    """Reads each file from the place that `find` gives for it; `refused` words the refusals of those places, `pinned`
    has requests carry the entry's etag.

    A place may redirect to another host (a hub to its CDN, by a URL signed for some minutes): later reads of the file
    go there at once, and come back when that URL has lapsed. Pieces are what the socket has, up to 1 MiB.
    """

    def __init__(
        self,
        client: HttpClient,
        find: Callable[[FileEntry], Place],
        refused: Refusal = refusal,
        *,
        pinned: bool = True,
    ) -> None:
        self._client = client
        self._find = find
        self._refused = refused
        self._pinned = pinned
        self._moved: dict[str, str] = {}  # path of a file -> where its place led to

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        """See `Origin.read`."""
        size = entry.size_bytes
        end = size if end is None else end
        if end is not None and start >= end:
            return
        place = self._find(entry)
        headers = conditions(entry.etag) if self._pinned else {}
        if start > 0 or end != size:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        answer, url = self._ask(entry, place, headers)
        what = shown(url)
        try:
            if answer.status not in (200, 206):
                refused = self._refused if origin_of(url) == origin_of(place.url) else refusal
                raise refused(answer.status, answer.headers, shown(place.url))
            expected = entry if self._pinned else FileEntry(entry.path, size)
            check_answer(answer.status, answer.headers, expected, start, end, what)
            num_left = None if end is None else end - start
            while num_left != 0:
                size_wanted = _MAX_PIECE_BYTES if num_left is None else min(num_left, _MAX_PIECE_BYTES)
                data = self._client.read(answer, size_wanted, what)
                if not data:
                    break
                if num_left is not None:
                    num_left -= len(data)
                yield memoryview(data)
            if num_left:
                raise OriginError(f"{what}: {num_left} bytes less came than were promised")
        finally:
            self._client.done(answer)

    def close(self) -> None:
        self._client.close()

    def _ask(self, entry: FileEntry, place: Place, headers: Mapping[str, str]) -> tuple[urllib3.BaseHTTPResponse, str]:
        moved = self._moved.get(entry.path)
        if moved is not None:
            answer, url = self._client.get(moved, headers)
            if answer.status not in _LAPSED:
                return answer, url
            self._client.done(answer)
            self._moved.pop(entry.path, None)
        answer, url = self._client.get(place.url, headers, place.private)
        if answer.status in (200, 206) and origin_of(url) != origin_of(place.url):
            self._moved[entry.path] = url
        return answer, url
