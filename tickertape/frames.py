"""Messages as frames on a byte stream, without any socket.

    frame  = u32 length of the header | header | the inline buffers, end to end
    header = msgpack of [messages, buffers]; a buffer is [index of its message, length, is it a memfd]

Long prompts leave their message as buffers, so that they are copied once and not parsed; large ones travel as memfd
beside the stream and cost the socket nothing.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from tickertape.core.messages import Submit

__all__ = ["MAX_DESCRIPTORS", "Frame", "FrameReader", "LinkError", "encode_frames"]

MAX_DESCRIPTORS: Final = 64
"""Of one frame; the kernel takes up to 253 in one message."""

_LENGTH: Final = struct.Struct("<I")
_MAX_HEADER_BYTES: Final = 64 << 20
_MAX_BUFFER_BYTES: Final = 256 << 20
_OUT_OF_BAND_BYTES: Final = 4 << 10
_MEMFD_BYTES: Final = 256 << 10
_MESSAGES_PER_FRAME: Final = 1024

M = TypeVar("M")


class LinkError(Exception):
    """What came over the link is not what the other side may send. The link is of no more use."""


class _Buffer(Struct, frozen=True, array_like=True):
    message: int
    num_bytes: int
    memfd: bool


class _Header(Struct, Generic[M], frozen=True, array_like=True):
    messages: list[M]
    buffers: list[_Buffer]


class Frame(Struct, frozen=True):
    """Ready to be written: the bytes, and the descriptors that go with the first of them. The writer closes these."""

    data: bytes
    descriptors: tuple[int, ...]


def encode_frames(messages: Sequence[Any]) -> list[Frame]:
    """All messages, in order, in as few frames as the bounds allow."""
    frames: list[Frame] = []
    batch: list[Any] = []
    buffers: list[_Buffer] = []
    inline: list[bytes] = []
    descriptors: list[int] = []

    def close() -> None:
        header = msgspec.msgpack.encode(_Header(batch, buffers))
        if len(header) > _MAX_HEADER_BYTES:
            raise LinkError(f"a frame's header of {len(header)} bytes is over {_MAX_HEADER_BYTES}")
        data = b"".join((_LENGTH.pack(len(header)), header, *inline))
        frames.append(Frame(data, tuple(descriptors)))
        for part in (batch, buffers, inline, descriptors):
            part.clear()

    for message in messages:
        if len(descriptors) == MAX_DESCRIPTORS or len(batch) == _MESSAGES_PER_FRAME:
            close()
        left, payload = _detach(message)
        if payload is not None:
            memfd = len(payload) >= _MEMFD_BYTES
            buffers.append(_Buffer(len(batch), len(payload), memfd))
            if memfd:
                descriptors.append(_to_memfd(payload))
            else:
                inline.append(payload)
        batch.append(left)
    if batch:
        close()
    return frames


class FrameReader(Generic[M]):
    """Turns what a socket yields into messages of `incoming`, a tagged union of structs. Not thread-safe."""

    def __init__(self, incoming: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[_Header[M]] = msgspec.msgpack.Decoder(_Header[incoming])
        self._data = bytearray()
        self._descriptors: deque[int] = deque()
        self._header: _Header[M] | None = None
        self._needed = _LENGTH.size  # bytes the next part takes

    def feed(self, data: bytes, descriptors: Iterable[int] = ()) -> list[M]:
        """The messages that are now whole. Takes ownership of the descriptors. Raises LinkError; the reader is then
        to be closed."""
        self._data += data
        self._descriptors.extend(descriptors)
        messages: list[M] = []
        while len(self._data) >= self._needed:
            if self._header is None:
                (length,) = _LENGTH.unpack_from(self._data)
                if length > _MAX_HEADER_BYTES:
                    raise LinkError(f"a frame claims a header of {length} bytes, over {_MAX_HEADER_BYTES}")
                if len(self._data) < _LENGTH.size + length:
                    self._needed = _LENGTH.size + length
                    break
                self._header = self._decode(bytes(self._data[_LENGTH.size : _LENGTH.size + length]))
                del self._data[: _LENGTH.size + length]
                self._needed = sum(b.num_bytes for b in self._header.buffers if not b.memfd)
            else:
                messages += self._assemble(self._header)
                self._header, self._needed = None, _LENGTH.size
        return messages

    @property
    def between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not self._data and self._header is None

    def close(self) -> None:
        """Closes descriptors that no message took."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _decode(self, header: bytes) -> _Header[M]:
        try:
            decoded = self._decoder.decode(header)
        except msgspec.MsgspecError as error:
            raise LinkError(f"a frame's header is malformed: {error}") from error
        for buffer in decoded.buffers:
            if not 0 <= buffer.message < len(decoded.messages) or not 0 <= buffer.num_bytes <= _MAX_BUFFER_BYTES:
                raise LinkError(f"a frame has an impossible buffer: {buffer}")
        return decoded

    def _assemble(self, header: _Header[M]) -> list[M]:
        offset = 0
        messages = list(header.messages)
        for buffer in header.buffers:
            if buffer.memfd:
                payload = self._from_memfd(buffer.num_bytes)
            else:
                payload = bytes(self._data[offset : offset + buffer.num_bytes])
                offset += buffer.num_bytes
            messages[buffer.message] = _attach(messages[buffer.message], payload)
        del self._data[:offset]
        return messages

    def _from_memfd(self, num_bytes: int) -> bytes:
        if not self._descriptors:
            raise LinkError("a frame promises a descriptor that did not come")
        descriptor = self._descriptors.popleft()
        try:
            payload = os.pread(descriptor, num_bytes, 0)
        except OSError as error:
            raise LinkError(f"a frame's descriptor cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)
        if len(payload) != num_bytes:
            raise LinkError(f"a frame's descriptor holds {len(payload)} of {num_bytes} bytes")
        return payload


def _detach(message: Any) -> tuple[Any, bytes | None]:
    """The message without its bulk, and the bulk."""
    if isinstance(message, Submit) and len(message.request.prompt) >= _OUT_OF_BAND_BYTES:
        return Submit(msgspec.structs.replace(message.request, prompt=b"")), message.request.prompt
    return message, None


def _attach(message: Any, payload: bytes) -> Any:
    """The inverse of `_detach`."""
    if not isinstance(message, Submit):
        raise LinkError(f"a frame has a buffer for a {type(message).__name__}, which takes none")
    return Submit(msgspec.structs.replace(message.request, prompt=payload))


def _to_memfd(payload: bytes) -> int:
    descriptor = os.memfd_create("tickertape", os.MFD_CLOEXEC)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(descriptor, view) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
