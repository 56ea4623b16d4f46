"""Reading a GGUF file: its metadata, where its tensors lie, and their values, a few rows at a time.

The `gguf` library's own reader makes an object per array element and trusts every count it reads; a vocabulary costs
it seconds and a damaged count never ends. The layout is small, so it is read here, each length checked before use.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from msgspec import Struct

from tickertape.core.errors import StartupError

__all__ = ["GgufFile", "GgufTensor"]

_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_DIMENSIONS: Final = 4


class GgufTensor(Struct, frozen=True):
    """`shape` is row-major, as numpy has it (GGUF writes it the other way round)."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size_bytes: int

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])


class GgufFile:
    """An open GGUF file, mapped read-only; a context manager. `metadata` holds plain Python values.

    Raises StartupError naming the file: BadHeader when it is not GGUF or contradicts itself, TruncatedFile when it is
    shorter than it says, UnsupportedFormat for a version, byte order or tensor type that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(fd).st_size
            if os.pread(fd, 4, 0) != b"GGUF":
                raise StartupError(f"{self.name}: not a GGUF file", code="BadHeader")
            self._map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        try:
            self.metadata, self.tensors = _parse(self._map)
        except BaseException as error:
            self._map.close()
            if isinstance(error, _Truncated):
                raise StartupError(f"{self.name}: truncated or damaged", code="TruncatedFile") from error
            if isinstance(error, _Bad):
                raise StartupError(f"{self.name}: {error}", code=error.code) from error
            raise

    def rows(self, name: str, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Some rows of a tensor as float32 [len(rows), row length]."""
        tensor = self.tensors[name]
        row_bytes = tensor.size_bytes // tensor.num_rows
        raw = np.frombuffer(self._map, np.uint8, tensor.size_bytes, tensor.offset).reshape(tensor.num_rows, row_bytes)
        values = quants.dequantize(raw[rows], tensor.kind)
        return values.reshape(len(rows), tensor.shape[-1])  # type: ignore[no-any-return]

    def close(self) -> None:
        self._map.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Truncated(Exception):
    """A read past the end of the file."""


class _Bad(Exception):
    def __init__(self, what: str, code: str = "BadHeader") -> None:
        super().__init__(what)
        self.code = code


class _Cursor:
    """Reads little-endian values from a mapping, front to back, never past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data) - self.offset:
            raise _Truncated
        start, self.offset = self.offset, self.offset + num_bytes
        return self._data[start : self.offset]

    def scalar(self, spelling: str) -> Any:
        return struct.unpack(spelling, self.take(struct.calcsize(spelling)))[0]

    def text(self) -> str:
        return self.take(self.scalar("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, *, nested: bool = False) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY or nested:
            raise _Bad(f"metadata of the unknown type {kind}")
        kind = self.scalar("<I")
        if kind in _SCALARS:
            spelling = np.dtype(_SCALARS[kind])
            length = self.scalar("<Q")
            return np.frombuffer(self.take(length * spelling.itemsize), spelling).tolist()
        return [self.value(kind, nested=True) for _ in range(self.scalar("<Q"))]


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    cursor = _Cursor(data)
    cursor.take(4)
    version = cursor.scalar("<I")
    if version & 0xFFFF == 0:
        raise _Bad("big-endian GGUF cannot be read", "UnsupportedFormat")
    if version not in (2, 3):
        raise _Bad(f"GGUF version {version} cannot be read (2 and 3 can)", "UnsupportedFormat")
    num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    found: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int]] = {}
    for _ in range(num_tensors):
        name = cursor.text()
        if name in found:
            raise _Bad(f"tensor {name!r} is there twice")
        found[name] = _tensor_place(cursor, name)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Bad(f"an alignment of {alignment}")
    start = -(-cursor.offset // alignment) * alignment
    return metadata, {
        name: _checked(name, shape, kind, start + offset, len(data)) for name, (shape, kind, offset) in found.items()
    }


def _tensor_place(cursor: _Cursor, name: str) -> tuple[tuple[int, ...], GGMLQuantizationType, int]:
    num_dimensions = cursor.scalar("<I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise _Bad(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(cursor.scalar("<Q") for _ in range(num_dimensions))[::-1]
    kind, offset = cursor.scalar("<I"), cursor.scalar("<Q")
    try:
        return shape, GGMLQuantizationType(kind), offset
    except ValueError as error:
        raise _Bad(f"tensor {name!r} has the unknown type {kind}", "UnsupportedFormat") from error


def _checked(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, offset: int, end: int) -> GgufTensor:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise _Bad(f"tensor {name!r} has the shape {list(shape)}, which {kind.name} cannot have")
    size_bytes = math.prod(shape) // block * block_bytes
    if offset + size_bytes > end:
        raise _Truncated
    return GgufTensor(shape, kind, offset, size_bytes)
