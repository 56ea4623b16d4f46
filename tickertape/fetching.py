"""Keeps the fetcher running: asks it for the models, and starts it again when it dies. What it does it tells here."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from tickertape.backoff import Backoff
from tickertape.burial import wait_for_exit
from tickertape.children import Child, describe_exit
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Fetch, FromFetcher, Loading, Resolved, StoppedEarly, WarmupCounts
from tickertape.core.ports import Progress
from tickertape.link import AsyncLink

__all__ = ["FetchWatcher", "Fetching"]

_END_S: Final = 5.0

_log = logging.getLogger(__name__)


class FetchWatcher(Protocol):
    """Whoever wants the models. Called on the loop. `number` is a model's place among those asked for."""

    def fetching(self, number: int, progress: Progress) -> None: ...
    def resolved(self, number: int, resolved: Resolved) -> None:
        """Once when all of a model lies in the store; before that, any number of times when enough does to begin."""
        ...

    def counted(self, counts: WarmupCounts) -> None:
        """Over all fetchers there have been."""
        ...


class Fetching:
    """Has the models of `fetch` brought in, in order. A fetcher that dies is followed by another, for what is still
    missing: what has come lies in the store. Its own last word is final while anything is missing.

    With a peer port it stays when all is there, to serve peers; then nothing that becomes of it is of any consequence
    but that it is started again. `start_child` is called on the loop's thread, which must be the main thread; `first`
    is a fetcher that was started before. `jitter` gives numbers in [0, 1).
    """

    def __init__(
        self,
        fetch: Fetch,
        watcher: FetchWatcher,
        start_child: Callable[[], Child],
        *,
        first: Child | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._fetch = fetch
        self._watcher = watcher
        self._start_child = start_child
        self._first = first
        self._clock = clock
        self._jitter = jitter
        self._backoff = Backoff(clock)
        self._num_here = 0
        self._counts = WarmupCounts()  # of the fetchers before this one

    async def run(self) -> None:
        """Until all models are there, or with a peer port until cancelled. Raises StartupError: the fetcher's last
        word, or FetchFailed when fetchers die too often. No fetcher is left when it ends."""
        while True:
            child, self._first = self._first or self._start_child(), None
            born = self._clock()
            death = await self._live(child)
            if death is None:
                return
            lived_s = self._clock() - born
            if (delay_s := self._backoff.died(lived_s)) is None:
                if not self._serving:
                    raise StartupError(f"fetchers die again and again; the last time: {death}", code="FetchFailed")
                self._backoff = Backoff(self._clock, first_s=30.0)  # a trouble that lasts: peers have others to ask
                delay_s = 30.0
            delay_s *= 0.5 + self._jitter()  # many servers may have lost theirs at once
            _log.error("%s; starting another in %.1f s", death, delay_s)
            await asyncio.sleep(delay_s)

    @property
    def _serving(self) -> bool:
        return self._num_here == len(self._fetch.models)

    async def _live(self, child: Child) -> str | None:
        """One fetcher, from its start to its end. What it died of; None when its work was done."""
        inbox: asyncio.Queue[FromFetcher | Exception | None] = asyncio.Queue()

        def take(messages: list[FromFetcher]) -> None:
            for message in messages:
                inbox.put_nowait(message)

        link: AsyncLink[FromFetcher] = AsyncLink(child.socket, FromFetcher, on_messages=take, on_close=inbox.put_nowait)
        counts = WarmupCounts()
        try:
            link.send(replace(self._fetch, models=self._fetch.models[self._num_here :]))
            while not (self._serving and self._fetch.options.peer_port is None):
                message = await inbox.get()
                if isinstance(message, WarmupCounts):
                    counts = message
                    self._watcher.counted(_sum(self._counts, counts))
                elif isinstance(message, StoppedEarly):
                    error = message.failure.error()
                    if self._serving:
                        return f"the fetcher stopped: {error.message}"
                    raise error if isinstance(error, StartupError) else _told(error)
                elif message is None or isinstance(message, Exception):
                    return await _fate(child, message)
                elif not self._serving:
                    self._take(message)
            return None
        finally:
            self._counts = _sum(self._counts, counts)
            link.close()
            await wait_for_exit(child.process, _END_S)
            child.kill()

    def _take(self, message: Loading | Resolved) -> None:
        if isinstance(message, Loading):
            self._watcher.fetching(self._num_here, message.progress)
            return
        number = self._num_here
        self._num_here += message.complete
        self._watcher.resolved(number, message)


def _told(error: TickertapeError) -> StartupError:
    return StartupError(error.message, code="FetchFailed")


async def _fate(child: Child, error: Exception | None) -> str:
    if error is None:
        await wait_for_exit(child.process, _END_S)
    child.kill()
    if error is not None and not isinstance(error, OSError):
        return f"the fetcher's link broke ({error})"
    return f"the fetcher {describe_exit(child.process.returncode)}"


def _sum(one: WarmupCounts, other: WarmupCounts) -> WarmupCounts:
    names = WarmupCounts.__struct_fields__
    numbers = {name: getattr(one, name) + getattr(other, name) for name in names if name != "num_bytes"}
    return WarmupCounts(num_bytes=dict(Counter(one.num_bytes) + Counter(other.num_bytes)), **numbers)
