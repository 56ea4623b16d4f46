"""The weights of a model directory, mapped read-only: what every process of a node shares."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickertape.core.errors import StartupError
from tickertape.weights.arriving import Waiting, arrivals, opened
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
    with the last of them. Thread-safe. A mapped file has a shared flock on it for as long as the mapping lives, which
    tells whoever makes room in the store to leave it.

    With `waiting`, `directory` may be a staging directory, whose files are still being fetched: `open` waits for the
    file of its tensor to be verified, and the bytes of no other are ever seen.

    Raises StartupError as `read_shards` does, and when a file changes between the check and the mapping.
    """

    def __init__(self, directory: Path, waiting: Waiting | None = None) -> None:
        directory = directory.absolute()
        self._waiting = waiting
        self._arrivals = {} if waiting is None else arrivals(directory)
        self._lock = threading.Lock()
        with ExitStack() as stack:
            fds = stack.enter_context(opened(self._arrivals))
            self._shards = read_shards(directory, fds)
            self._maps: dict[Path, mmap.mmap] | None = {}
            for path, header in self._shards.headers.items():
                fd = fds[path] if path in fds else _open(path, path.name, stack)
                self._maps[path] = _map(path.name, fd, header)
            # Kept to tell whether what is verified in the end is what is mapped.
            self._fds = {path: os.dup(fd) for path, fd in fds.items() if path in self._maps}

    def names(self) -> Sequence[str]:
        """File after file, each in the order of its bytes: who loads in this order follows a fetch."""
        places = {path: number for number, path in enumerate(sorted(self._shards.headers))}
        tensors = self._shards.tensors
        return sorted(tensors, key=lambda name: (places[tensors[name][0]], tensors[name][1].offset, name))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shards.tensors[name][1].shape

    def dtype(self, name: str) -> str:
        return self._shards.tensors[name][1].dtype

    @property
    def mappings(self) -> Mapping[Path, mmap.mmap]:
        """Of the whole files, in the order of `names`. They stay ours to close."""
        maps = self._maps or {}
        return {path: maps[path] for path in sorted(maps) if path not in self._arrivals}

    def open(self, name: str) -> npt.NDArray[Any]:
        path, info = self._shards.tensors[name]
        if self._maps is None:
            raise ValueError("the weights are closed")
        dtype = np.dtype(_NUMPY[info.dtype])
        if info.size_bytes == 0:
            empty = np.empty(info.shape, dtype)
            empty.flags.writeable = False
            return empty
        if path in self._arrivals:
            self._await(path)
        count = info.size_bytes // dtype.itemsize
        return np.frombuffer(self._maps[path], dtype, count, info.offset).reshape(info.shape)

    def close(self) -> None:
        maps, self._maps = self._maps, None
        for mapped in (maps or {}).values():
            with suppress(BufferError):  # a view is still in use: it keeps the mapping until it goes
                mapped.close()
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def _await(self, path: Path) -> None:
        """Until the file is verified; then it is like any other."""
        with self._lock:
            if (arrival := self._arrivals.get(path)) is None or self._maps is None:
                return
            assert self._waiting is not None
            other = arrival.wait(self._fds[path], self._waiting)
            if other is not None:  # nobody has seen the mapping of what did not make it
                with ExitStack() as stack:
                    mapped = _map(path.name, _open(other, path.name, stack), self._shards.headers[path])
                self._maps[path].close()
                self._maps[path] = mapped
            os.close(self._fds.pop(path))
            del self._arrivals[path]


def _open(path: Path, name: str, stack: ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StartupError(f"{name}: cannot be read: {error.strerror}", code="Unreadable") from error
    stack.callback(os.close, fd)
    return fd


def _map(name: str, fd: int, checked: Header) -> mmap.mmap:
    """Maps the very file whose header is checked once more through the same descriptor, so that what was validated is
    what is mapped: a mapping longer than its file would kill the process on first touch."""
    with suppress(OSError):  # a file system without locks; others have it for a moment, to see whether it is in use
        fcntl.flock(fd, fcntl.LOCK_SH)
    if read_header(Path(name), fd) != checked:
        raise StartupError(f"{name}: changed while it was opened", code="ChangedFile")
    # The mapping has a duplicate of the descriptor, and with it the lock, until it goes.
    return mmap.mmap(fd, checked.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
