"""What the front has promised and not yet finished: the truth about requests when a worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain

from tickertape.core.errors import TickertapeError
from tickertape.core.request import Request, TokenDelta

__all__ = ["Entry", "Journal", "merge"]


class Entry:
    """One request, from acceptance to its end, and what came for it that its reader has not taken yet.

    What is untaken is bounded by the request's own max_tokens, however slow the reader: it takes all of it at once.
    """

    __slots__ = ("_failure", "_pending", "_waiter", "num_deaths", "owed", "produced", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.produced = False
        """Whether anything came. If not, another worker can start it afresh and nobody will know."""
        self.owed = True
        """Whether more is to come: its reader may be long about what is here already."""
        self.num_deaths = 0
        """How many workers died while they had it."""
        self._pending: list[TokenDelta] = []
        self._failure: TickertapeError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: TokenDelta) -> None:
        self.produced = True
        self.owed = self.owed and delta.finish is None
        self._pending.append(delta)
        self._wake()

    def fail(self, error: TickertapeError) -> None:
        """The reader gets what is pending, then the error."""
        self.owed = False
        self._failure = error
        self._wake()

    async def take(self) -> TokenDelta:
        """Waits, then returns everything pending as one delta. Raises the failure once nothing is. One reader."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pending, self._pending = self._pending, []
        return pending[0] if len(pending) == 1 else merge(pending)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Journal:
    """The open entries, by request id. Used on the front's loop only."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def open(self, request: Request) -> Entry:
        entry = self._entries[request.id] = Entry(request)
        return entry

    def close(self, request_id: int) -> None:
        self._entries.pop(request_id, None)

    def get(self, request_id: int) -> Entry | None:
        return self._entries.get(request_id)

    def owed(self) -> bool:
        """Whether the worker owes anybody more."""
        return any(entry.owed for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))


def merge(deltas: list[TokenDelta]) -> TokenDelta:
    """Several deltas of one stream, in order, as one."""
    logprobs = [d.logprobs for d in deltas if d.logprobs is not None]
    prompt_logprobs = [d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None]
    return TokenDelta(
        tokens=tuple(chain.from_iterable(d.tokens for d in deltas)),
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
        prompt_logprobs=tuple(chain.from_iterable(prompt_logprobs)) if prompt_logprobs else None,
        num_cached_tokens=next((d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None), None),
        finish=deltas[-1].finish,
    )
