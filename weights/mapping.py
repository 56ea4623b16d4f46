"""The weights of a model directory, mapped read-only: what every process of a node shares."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickertape.core.errors import StartupError
from tickertape.weights.header import Header, read_header
from tickertape.weights.shards import read_shards

__all__ = ["MappedWeights"]

_NUMPY: Final = {
    "BOOL": "?", "I8": "i1", "U8": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class MappedWeights:
    """A `WeightSet` over a directory with one or several safetensors files.

    Tensors are views on shared read-only mappings: opening one copies nothing, writing to one raises. BF16 comes as
    uint16 and the 8-bit floats as uint8, bit for bit. Views that outlive `close` stay readable; their mapping goes
    with the last of them. Thread-safe.

    Raises StartupError as `read_shards` does, and when a file changes between the check and the mapping.
    """

    def __init__(self, directory: Path) -> None:
        self._shards = read_shards(directory.absolute())
        self._maps: dict[Path, mmap.mmap] | None = {
            path: _map(path, header) for path, header in self._shards.headers.items()
        }

    def names(self) -> Sequence[str]:
        """In no particular order."""
        return list(self._shards.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shards.tensors[name][1].shape

    def dtype(self, name: str) -> str:
        return self._shards.tensors[name][1].dtype

    def open(self, name: str) -> npt.NDArray[Any]:
        path, info = self._shards.tensors[name]
        if self._maps is None:
            raise ValueError("the weights are closed")
        dtype = np.dtype(_NUMPY[info.dtype])
        if info.size_bytes == 0:
            empty = np.empty(info.shape, dtype)
            empty.flags.writeable = False
            return empty
        count = info.size_bytes // dtype.itemsize
        return np.frombuffer(self._maps[path], dtype, count, info.offset).reshape(info.shape)

    def close(self) -> None:
        maps, self._maps = self._maps, None
        for mapped in (maps or {}).values():
            with suppress(BufferError):  # a view is still in use: it keeps the mapping until it goes
                mapped.close()


def _map(path: Path, checked: Header) -> mmap.mmap:
    """Maps the very file whose header is checked once more through the same descriptor, so that what was validated is
    what is mapped: a mapping longer than its file would kill the process on first touch."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if read_header(path, fd) != checked:
            raise StartupError(f"{path.name}: changed while it was opened", code="ChangedFile")
        return mmap.mmap(fd, checked.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(fd)
