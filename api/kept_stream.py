"""A stream that outlives its reader: it goes on by itself for a while, and what it said can be read again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from tickertape.api.error_table import public_error
from tickertape.api.events import Usage
from tickertape.api.generation import Generation
from tickertape.core.errors import DeadlineExceeded, InvalidRequest, RequestAborted, StreamNotFound, TickertapeError

__all__ = ["KeptStream"]

_log = logging.getLogger("tickertape.resume")


class KeptStream:
    """Messages of `generation`, as `source` makes them, numbered from 1. `run` fetches them, in a task of its own, and
    closes both in the end; `read` hands them out, to one reader at a time, any number of times.

    Of what was handed out only the last `max_bytes` are kept. What was not is never dropped: beyond as many bytes of it
    the stream waits for its reader, as one that nobody keeps does. The two have a bound each, so that what was handed
    out and lost on its way is still there for a reader who comes back late. `window_s` after the last reader has left
    it is ended and `forgotten` is called; at once when there is nothing that a reader could come back for. On one event
    loop.
    """

    def __init__(
        self,
        generation: Generation,
        source: AsyncGenerator[bytes, None],
        *,
        max_bytes: int,
        window_s: float,
        forgotten: Callable[[], None],
    ) -> None:
        self.generation = generation
        self._source = source
        self._max_bytes = max_bytes
        self._window_s = window_s
        self._forgotten = forgotten
        self._messages: deque[bytes] = deque()
        self._num_new_bytes = 0  # of the messages that were not handed out
        self._num_handed_bytes = 0
        self._num_dropped = 0
        self._num_handed = 0
        self._told = Usage(0, 0, 0)
        self._error: TickertapeError | None = None
        self._ended = False
        self._fetching: asyncio.Task[object] | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._reader: object | None = None
        self._timer = asyncio.get_running_loop().call_later(window_s, self.forget)

    @property
    def ended(self) -> bool:
        """Whether nothing more is being computed."""
        return self._ended

    @property
    def is_read(self) -> bool:
        return self._reader is not None

    async def run(self, deadline_s: float | None) -> None:
        """Once. The stream ends with DeadlineExceeded when it lasts longer. Raises nothing."""
        self._fetching = asyncio.current_task()
        try:
            async with asyncio.timeout(deadline_s), aclosing(self._source) as messages:
                if not self._ended:
                    async for message in messages:
                        await self._put(message)
        except TimeoutError:
            self._error = DeadlineExceeded("The deadline of the request has passed")
        except asyncio.CancelledError:
            if self._error is None:  # from outside, not by `end`
                raise
        except Exception as error:
            if not isinstance(error, TickertapeError):
                _log.error("stream failed", exc_info=error)
            self._error = public_error(error)
        finally:
            self._ended = True
            self._news.set()
            await self.generation.aclose()

    def abort(self) -> None:
        self.end(RequestAborted("The request was aborted"))

    def end(self, error: TickertapeError) -> None:
        """Stops computing. A reader gets what is there, then `error`."""
        if self._ended:
            return
        self._ended, self._error = True, error
        self._news.set()
        if self._fetching is not None:
            self._fetching.cancel()

    async def read(self, num_received: int) -> AsyncGenerator[bytes, None]:
        """What comes behind the first `num_received` messages, and the end of the stream, whatever it is. Takes the
        stream from another reader, who gets RequestAborted. Raises StreamNotFound when the next message is not kept
        any more, InvalidRequest when so many were never sent."""
        if num_received < self._num_dropped:
            raise StreamNotFound("What follows in this stream is not kept any more", param="received")
        if num_received > self._num_handed:
            raise InvalidRequest("Invalid value for 'received': so many were never sent", param="received")
        self._reader = me = object()
        self._news.set()
        self._timer.cancel()
        position = num_received
        try:
            while True:
                if self._reader is not me:
                    raise RequestAborted("Another call has taken the stream over")
                if position < self._num_dropped + len(self._messages):
                    message = self._messages[position - self._num_dropped]
                    position += 1
                    if position > self._num_handed:
                        self._hand_out(len(message))
                    yield message
                elif not self._ended:
                    self._news.clear()
                    await self._news.wait()
                elif self._error is not None:
                    raise self._error
                else:
                    return
        finally:
            if self._reader is me:
                self._reader = None
                window_s = self._window_s if self._num_handed else 0.0  # who got nothing has no token to return with
                self._timer = asyncio.get_running_loop().call_later(window_s, self.forget)

    def untold_usage(self) -> Usage:
        """What it has cost since this was last asked: each call that reads it tells of its share."""
        usage = self.generation.usage
        untold, self._told = usage.minus(self._told), usage
        return untold

    def forget(self) -> None:
        """Ends it, and what waits for readers to come back."""
        self._timer.cancel()
        self.end(StreamNotFound("Nobody came back for the stream in time"))
        self._forgotten()

    def _hand_out(self, num_bytes: int) -> None:
        """Counts the first message that was not handed out as one that was. Nothing else drops messages, so a reader
        that is behind the last one misses none."""
        self._num_handed += 1
        self._num_new_bytes -= num_bytes
        self._num_handed_bytes += num_bytes
        while self._num_handed_bytes > self._max_bytes:
            self._num_handed_bytes -= len(self._messages.popleft())
            self._num_dropped += 1
        self._room.set()

    async def _put(self, message: bytes) -> None:
        """Waits where there is no room."""
        self._messages.append(message)
        self._num_new_bytes += len(message)
        self._news.set()
        while self._num_new_bytes > self._max_bytes:
            self._room.clear()
            await self._room.wait()
