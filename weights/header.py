"""The safetensors header, read with suspicion: 8 bytes of length, JSON, then the tensors without gap or overlap.

Nothing is allocated or mapped on the word of the file: every number is checked against its real size first.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tickertape.core.errors import StartupError

__all__ = ["DTYPE_BYTES", "Header", "TensorInfo", "read_header"]

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_MAX_DIMENSIONS: Final = 64  # numpy's
_LENGTH_BYTES: Final = 8

DTYPE_BYTES: Final = {
    "BOOL": 1, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class TensorInfo(Struct, frozen=True):
    """A tensor of a file: `offset` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class Header(Struct, frozen=True):
    """What a safetensors file says it holds, consistent and within the file's `size_bytes`."""

    tensors: dict[str, TensorInfo]
    size_bytes: int


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(path: Path, fd: int | None = None) -> Header:
    """Reads the header of the safetensors file at `path` (already open as `fd`, if given).

    Raises StartupError, naming the file: TruncatedFile when the file is shorter than its header says, BadHeader when
    the header contradicts itself or the format, UnsupportedFormat for a tensor type of less than a byte.
    """
    if fd is None:
        try:
            own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StartupError(f"{path.name}: cannot be read: {error.strerror}", code="Unreadable") from error
        try:
            return read_header(path, own)
        finally:
            os.close(own)
    size_bytes = os.fstat(fd).st_size
    raw = _read_json(path.name, fd, size_bytes)
    return Header(_check(path.name, raw, _LENGTH_BYTES + len(raw), size_bytes), size_bytes)


def _read_json(name: str, fd: int, size_bytes: int) -> bytes:
    length = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
    if size_bytes < _LENGTH_BYTES:
        raise StartupError(f"{name}: {size_bytes} bytes are too few for a safetensors file", code="TruncatedFile")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise _bad(name, f"a header of {length} bytes (2 to {MAX_HEADER_BYTES} are allowed)")
    if length > size_bytes - _LENGTH_BYTES:
        raise StartupError(f"{name}: cut off inside its header ({size_bytes} bytes)", code="TruncatedFile")
    raw = bytearray()
    while len(raw) < length:
        piece = os.pread(fd, min(length - len(raw), 4 << 20), _LENGTH_BYTES + len(raw))
        if not piece:
            raise StartupError(f"{name}: became shorter while it was read", code="TruncatedFile")
        raw += piece
    return bytes(raw)


def _check(name: str, raw: bytes, data_start: int, size_bytes: int) -> dict[str, TensorInfo]:
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if metadata := fields.pop("__metadata__", None):
            msgspec.json.decode(metadata, type=dict[str, str])
        entries = {tensor: msgspec.json.decode(entry, type=_Entry) for tensor, entry in fields.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(name, f"the header is not what safetensors allows: {error}") from error
    end, tensors = 0, {}
    for tensor, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end or stop < start:
            raise _bad(name, f"tensor {tensor!r} lies at [{start}, {stop}), expected it to start at {end}")
        if stop - start != _num_bytes(name, tensor, entry):
            raise _bad(name, f"tensor {tensor!r} of {entry.dtype} {list(entry.shape)} has {stop - start} bytes")
        tensors[tensor] = TensorInfo(entry.dtype, entry.shape, data_start + start, stop - start)
        end = stop
    if data_start + end > size_bytes:
        raise StartupError(
            f"{name}: truncated, {size_bytes} bytes of the {data_start + end} its header promises", code="TruncatedFile"
        )
    if data_start + end < size_bytes:
        raise _bad(name, f"{size_bytes - data_start - end} bytes after the last tensor")
    return tensors


def _num_bytes(name: str, tensor: str, entry: _Entry) -> int:
    itemsize = DTYPE_BYTES.get(entry.dtype)
    if itemsize is None:
        raise StartupError(
            f"{name}: tensor {tensor!r} has the type {entry.dtype!r}, which is not supported", code="UnsupportedFormat"
        )
    if len(entry.shape) > _MAX_DIMENSIONS or any(n < 0 for n in entry.shape):
        raise _bad(name, f"tensor {tensor!r} has an impossible shape")
    if math.prod(n for n in entry.shape if n) >= 1 << 60:  # zeros aside: numpy multiplies the others too
        raise _bad(name, f"tensor {tensor!r} has an impossible shape")
    return math.prod(entry.shape) * itemsize


def _bad(name: str, what: str) -> StartupError:
    return StartupError(f"{name}: {what}", code="BadHeader")
