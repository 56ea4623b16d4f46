"""Server-sent events, as these servers send them: one line of data each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from tickertape.plugins import EngineDead, RowError

__all__ = ["events"]

_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"


async def events(parts: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """The data of each event, until [DONE]; what follows is read and dropped, so that the connection can be used again.
    Comments (keep-alives) and other lines are passed over. Raises RowError for a line longer than `max_bytes`,
    EngineDead when the stream ends without its end."""
    pending: list[bytes] = []
    num_pending = 0
    async for part in parts:
        pending.append(part)
        num_pending += len(part)
        if b"\n" in part:
            *lines, rest = b"".join(pending).split(b"\n")
            pending, num_pending = [rest], len(rest)
            for line in lines:
                if not line.startswith(_DATA):
                    continue
                data = line.removeprefix(_DATA).strip()
                if data == _DONE:
                    async for _ in parts:
                        pass
                    return
                yield data
        if num_pending > max_bytes:
            raise RowError(f"the server behind this model sent an event of more than {max_bytes} bytes")
    raise EngineDead("the server behind this model broke off its answer")
