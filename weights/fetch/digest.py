"""The digests of a file on its way: they follow its prefix, so that they are known almost when the last byte comes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final

from tickertape.core.sources import CHUNK_BYTES, FileEntry
from tickertape.weights.partial import UNIT_BYTES, Partial

__all__ = ["Digest", "WrongChunk"]

_UNITS_PER_CHUNK: Final = CHUNK_BYTES // UNIT_BYTES


class WrongChunk(Exception):
    """A chunk was not what its own digest says; it has been given up."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


class Digest:
    """Reads each unit of a partial once, in order, as soon as it is held. One thread at a time.

    `copy` is where what was read is written, too: what lies there is exactly what was hashed, whatever others do to the
    partial. A unit that an earlier process left and that is not what its record says is given up and read again when it
    has come anew.
    """

    def __init__(self, partial: Partial, entry: FileEntry, copy: Path | None = None) -> None:
        self._partial = partial
        self._entry = entry
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._copy_fd = -1 if copy is None else os.open(copy, flags, 0o644)
        self._num_units = -(-partial.size_bytes // UNIT_BYTES)
        self.restart()

    @property
    def verified_bytes(self) -> int:
        """The beginning of the file whose chunks have been checked one by one; 0 when chunks have no digests."""
        return self._verified_bytes

    @property
    def is_ready(self) -> bool:
        """Whether there is something to read."""
        return self._unit < self._num_units and self._partial.is_held(self._unit)

    @property
    def is_finished(self) -> bool:
        return self._unit == self._num_units

    @property
    def sha256(self) -> str:
        """Of what was read so far."""
        return str(self._sha256.hexdigest())

    def matches(self) -> bool:
        """Whether the file, once finished, is what its entry says. An entry without a digest takes what came."""
        entry = self._entry
        if entry.sha256 is not None:
            return self.sha256 == entry.sha256
        return entry.git_sha1 is None or str(self._git_sha1.hexdigest()) == entry.git_sha1

    def advance(self, buffer: bytearray) -> int:
        """Takes in the next unit and returns its bytes; 0 when it turned out to be missing. `buffer` has UNIT_BYTES.
        Raises WrongChunk."""
        view = self._partial.read(self._unit, buffer)
        if view is None:
            return 0
        self._sha256.update(view)
        if self._git_sha1 is not None:
            self._git_sha1.update(view)
        if self._copy_fd >= 0:
            self._write(view, self._unit * UNIT_BYTES)
        self._unit += 1
        if self._entry.chunk_sha256:
            self._chunk.update(view)
            if self._unit % _UNITS_PER_CHUNK == 0 or self.is_finished:
                self._check_chunk()
        return len(view)

    def restart(self) -> None:
        """As if nothing had come."""
        self._unit = 0
        self._sha256: Any = hashlib.sha256()
        self._git_sha1: Any = None
        if self._entry.git_sha1 is not None and self._entry.sha256 is None:
            self._git_sha1 = hashlib.sha1(b"blob %d\0" % self._partial.size_bytes, usedforsecurity=False)
        self._chunk: Any = hashlib.sha256()
        self._before_chunk = (self._sha256.copy(), self._git_sha1 and self._git_sha1.copy())
        self._verified_bytes = 0

    def close(self) -> None:
        """May be called twice."""
        fd, self._copy_fd = self._copy_fd, -1
        if fd >= 0:
            os.close(fd)

    def _check_chunk(self) -> None:
        index = (self._unit - 1) // _UNITS_PER_CHUNK
        digest, self._chunk = self._chunk.hexdigest(), hashlib.sha256()
        if digest == self._entry.chunk_sha256[index]:
            self._verified_bytes = min(self._unit * UNIT_BYTES, self._partial.size_bytes)
            self._before_chunk = (self._sha256.copy(), self._git_sha1 and self._git_sha1.copy())
            return
        first, end = index * _UNITS_PER_CHUNK, self._unit
        sha256, git_sha1 = self._before_chunk
        self._sha256, self._git_sha1 = sha256.copy(), git_sha1 and git_sha1.copy()
        self._unit = first
        self._partial.lose(first, end)
        raise WrongChunk((end - first) * UNIT_BYTES)

    def _write(self, view: memoryview, offset: int) -> None:
        while view:
            count = os.pwrite(self._copy_fd, view, offset)
            offset, view = offset + count, view[count:]
