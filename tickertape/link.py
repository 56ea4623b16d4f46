"""The two ends of a link between the front and a child: messages over a Unix stream socket.

`Link` blocks and belongs to a child: one thread receives, any thread sends. `AsyncLink` lives on an asyncio loop.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from tickertape.frames import MAX_DESCRIPTORS, Frame, FrameReader, LinkError, encode_frames

__all__ = ["AsyncLink", "Link", "LinkError"]

_READ_BYTES: Final = 256 << 10
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
_HIGH_WATER_BYTES: Final = 1 << 20

M = TypeVar("M")


class Link(Generic[M]):
    """The blocking end. `incoming` is the union of messages that may come."""

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        self._socket = connection
        self._socket.setblocking(True)
        self._reader: FrameReader[M] = FrameReader(incoming)
        self._sending = threading.Lock()

    def send(self, *messages: Any) -> None:
        """Writes all of them, as one frame as a rule. Thread-safe. Raises OSError when the other end is gone."""
        with self._sending:
            for frame in encode_frames(messages):
                try:
                    sent = _write(self._socket, frame.data, frame.descriptors)
                finally:
                    _close_all(frame.descriptors)
                self._socket.sendall(memoryview(frame.data)[sent:])

    def receive(self) -> list[M]:
        """Waits for at least one message. An empty list: the other end is closed. Raises LinkError."""
        while True:
            data, descriptors = _read(self._socket)
            if not data:
                _at_end(self._reader)
                return []
            messages = self._reader.feed(data, descriptors)
            if messages:
                return messages

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


class AsyncLink(Generic[M]):
    """The asyncio end. `on_messages` gets what came, in order, a list per read; `on_close` is called once, with None
    after a clean end, and nothing follows it. All methods belong to the loop's thread; create it on the running loop.
    """

    def __init__(
        self,
        connection: socket.socket,
        incoming: Any,
        *,
        on_messages: Callable[[list[M]], None],
        on_close: Callable[[Exception | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._socket.setblocking(False)
        self._reader: FrameReader[M] = FrameReader(incoming)
        self._on_messages, self._on_close = on_messages, on_close
        self._outbox: list[Any] = []  # not encoded yet: everything said in one tick goes as one frame
        self._frames: deque[Frame] = deque()
        self._offset = 0  # into the first frame
        self._unsent_bytes = 0
        self._writing = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, *messages: Any) -> None:
        """Never blocks; what is said in one tick of the loop leaves as one write. After the end it is dropped: whoever
        needs to know hears of it by `on_close`."""
        if self._closed:
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.extend(messages)

    async def drain(self) -> None:
        """Waits while much is unsent, because the other end does not read."""
        await self._drained.wait()

    def close(self) -> None:
        """Closes our end; `on_close` is not called. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._reader.close()
        for frame in self._frames:
            _close_all(frame.descriptors)
        self._frames.clear()
        self._outbox.clear()
        self._drained.set()

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self.close()
            self._on_close(error)

    def _on_readable(self) -> None:
        try:
            data, descriptors = _read(self._socket)
            if not data:
                _at_end(self._reader)
            messages = self._reader.feed(data, descriptors)
        except BlockingIOError:
            return
        except (OSError, LinkError) as error:
            self._end(error)
            return
        if messages:
            self._on_messages(messages)
        if not data:
            self._end(None)

    def _flush(self) -> None:
        if self._closed:
            return
        frames = encode_frames(self._outbox)
        self._outbox.clear()
        self._frames.extend(frames)
        self._unsent_bytes += sum(len(frame.data) for frame in frames)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        try:
            while self._frames:
                self._write_some()
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket.fileno(), self._write)
        except OSError as error:
            self._end(error)
            return
        else:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._socket.fileno())
        if self._unsent_bytes > _HIGH_WATER_BYTES:
            self._drained.clear()
        else:
            self._drained.set()

    def _write_some(self) -> None:
        frame = self._frames[0]
        sent = _write(self._socket, memoryview(frame.data)[self._offset :], frame.descriptors)
        _close_all(frame.descriptors)
        self._unsent_bytes -= sent
        self._offset += sent
        if self._offset == len(frame.data):
            self._frames.popleft()
            self._offset = 0
        elif frame.descriptors:
            # They went with the first byte; what is left must not send them again.
            self._frames[0] = Frame(frame.data, ())


def _write(connection: socket.socket, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
    if not descriptors:
        return connection.send(data)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    return connection.sendmsg([data], ancillary)


def _read(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, flags, _ = connection.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    if flags & socket.MSG_CTRUNC:
        _close_all(descriptors)
        raise LinkError("more descriptors came at once than a frame may carry")
    return data, list(descriptors)


def _at_end(reader: FrameReader[Any]) -> None:
    if not reader.between_frames:
        raise LinkError("the link ended in the middle of a frame")


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
