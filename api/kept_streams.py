"""The streams that can be resumed, by their tokens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

from msgspec import Struct

from tickertape.api.generation import Generation
from tickertape.api.kept_stream import KeptStream
from tickertape.api.running import Running
from tickertape.core.errors import InvalidRequest, Overloaded, StreamNotFound

__all__ = ["KeptStreams", "ResumeLimits"]

_TOKEN_BYTES: Final = 16  # 128 random bits: nobody guesses one


class ResumeLimits(Struct, frozen=True, kw_only=True):
    """`window_s`: how long a stream waits for a reader to come back; 0: none can be resumed. `max_bytes`: how much of
    what was sent is kept of each. `max_streams`: of how many."""

    window_s: float = 30.0
    max_bytes: int = 256 << 10
    max_streams: int = 256


class _Key(NamedTuple):
    tenant: str
    kind: str
    token: str


class KeptStreams:
    """Used on the front's loop only. A token is good for the tenant that opened the stream and for the `kind` of stream
    that it was opened as; for anybody else there is no such stream."""

    def __init__(self, running: Running, limits: ResumeLimits | None = None) -> None:
        self.limits = ResumeLimits() if limits is None else limits
        self._running = running
        self._streams: dict[_Key, KeptStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """How many are still being computed."""
        return len(self._tasks)

    def check(self) -> None:
        """Raises InvalidRequest where streams are not kept, Overloaded (too_many_resumable) when there are too many. Of
        those that have ended the oldest makes room."""
        if not self.limits.window_s:
            raise InvalidRequest(
                "Streams cannot be resumed on this server", code="unsupported_value", param="resumable"
            )
        if len(self._streams) < self.limits.max_streams:
            return
        over = next((stream for stream in self._streams.values() if stream.ended and not stream.is_read), None)
        if over is None:
            message = f"There are {len(self._streams)} resumable streams already"
            raise Overloaded(message, code="too_many_resumable", retry_after_s=1.0)
        over.forget()

    def open(
        self,
        generation: Generation,
        source: Callable[[str], AsyncGenerator[bytes, None]],
        *,
        tenant: str,
        kind: str,
        request_id: str,
        deadline_s: float | None,
    ) -> KeptStream:
        """Keeps what `source` makes of the generation, which is its to close from now on; `source` is told the token.
        `request_id` aborts it as long as it runs. Raises as `check`, and has not taken the generation then."""
        self.check()
        key = _Key(tenant, kind, secrets.token_hex(_TOKEN_BYTES))
        limits = self.limits
        stream = KeptStream(
            generation,
            source(key.token),
            max_bytes=limits.max_bytes,
            window_s=limits.window_s,
            forgotten=lambda: self._forget(key),
        )
        self._streams[key] = stream
        task = asyncio.create_task(self._run(stream, tenant, request_id, deadline_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def find(self, *, tenant: str, kind: str, token: str) -> KeptStream:
        """Raises StreamNotFound."""
        stream = self._streams.get(_Key(tenant, kind, token))
        if stream is None:
            raise StreamNotFound("There is no such stream, or not any more", param="resume_token")
        return stream

    async def close(self) -> None:
        """Ends all."""
        for stream in list(self._streams.values()):
            stream.forget()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _forget(self, key: _Key) -> None:
        self._streams.pop(key, None)

    async def _run(self, stream: KeptStream, tenant: str, request_id: str, deadline_s: float | None) -> None:
        with self._running.entered(tenant, request_id) as entry:
            entry.started(stream)
            await stream.run(deadline_s)
