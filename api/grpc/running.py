"""The gRPC requests under way, by the ids that their clients know."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["Running"]


class Running:
    """Used on the front's loop only. A tenant sees its own requests."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], list[Callable[[], None]]] = {}

    @contextmanager
    def entered(self, tenant: str, request_id: str, end: Callable[[], None]) -> Generator[None, None, None]:
        """While a request runs. `end` makes it stop."""
        key = (tenant, request_id)
        self._ends.setdefault(key, []).append(end)
        try:
            yield
        finally:
            ends = self._ends[key]
            ends.remove(end)
            if not ends:
                del self._ends[key]

    def abort(self, tenant: str, request_id: str) -> bool:
        """Ends all of the tenant's requests of that id; whether there were any."""
        ends = list(self._ends.get((tenant, request_id), ()))
        for end in ends:
            end()
        return bool(ends)
