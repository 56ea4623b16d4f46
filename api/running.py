"""Requests under way, by the ids that their clients know: how one is ended from outside, whatever wire it came by."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Abortable", "Entry", "Running"]


class Abortable(Protocol):
    """What a request has under way."""

    def abort(self) -> None:
        """Ends it: whoever waits for it gets RequestAborted. Where it has ended nothing happens."""
        ...


class Running:
    """Used on the front's loop only. A tenant sees its own requests; several may have the same id."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], list[Entry]] = {}

    @contextmanager
    def entered(self, tenant: str, request_id: str) -> Generator[Entry, None, None]:
        """While a request runs."""
        entry = Entry(self._entries, tenant)
        entry.called(request_id)
        try:
            yield entry
        finally:
            entry.leave()

    def abort(self, tenant: str, request_id: str) -> bool:
        """Ends all of the tenant's requests of that id; whether there were any."""
        found = list(self._entries.get((tenant, request_id), ()))
        for entry in found:
            entry.abort()
        return bool(found)


class Entry:
    """One request. What it starts after it was aborted is aborted at once, so that it makes no difference how far it
    had come."""

    __slots__ = ("_aborted", "_entries", "_names", "_tenant", "_works")

    def __init__(self, entries: dict[tuple[str, str], list[Entry]], tenant: str) -> None:
        self._entries = entries
        self._tenant = tenant
        self._names: list[str] = []
        self._works: list[Abortable] = []
        self._aborted = False

    def called(self, name: str) -> None:
        """Another id that its client knows it by."""
        self._names.append(name)
        self._entries.setdefault((self._tenant, name), []).append(self)

    def started(self, work: Abortable) -> None:
        """`work` belongs to it, until `ended`. There may be several."""
        self._works.append(work)
        if self._aborted:
            work.abort()

    def ended(self, work: Abortable) -> None:
        self._works.remove(work)

    def abort(self) -> None:
        self._aborted = True
        for work in list(self._works):
            work.abort()

    def leave(self) -> None:
        for name in self._names:
            entries = self._entries[self._tenant, name]
            entries.remove(self)
            if not entries:
                del self._entries[self._tenant, name]
        self._names.clear()
