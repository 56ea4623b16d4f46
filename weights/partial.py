"""One file on its way: `partial/<key>/{data,bitmap,lock}`, which survive a kill.

What survives what: a write that returned is in the page cache, and SIGKILL does not take it from there; the record of a
unit is written after its data, so whoever comes next finds all but the units that were being filled. A power cut takes
what was not synced, in any order; the CRC in each record tells. `sync` every 64 MiB bounds how much that is.

Where the lock cannot be trusted (`exclusive` is False) others may write to `data` at any time, before and after it was
read. Then it is a mere source of bytes: whoever wants the file copies it to one of his own, and what he hashes is what
he wrote there.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from tickertape.core.sources import CHUNK_BYTES
from tickertape.weights.bitmap import Bitmap, Record
from tickertape.weights.lock import FileLock, keeps_others_out
from tickertape.weights.mounts import is_local

__all__ = ["UNIT_BYTES", "Claim", "Partial"]

UNIT_BYTES: Final = 1 << 20
"""What is accounted for as a whole, and lost when it was being filled at a kill. Divides CHUNK_BYTES."""

_NO_FALLOCATE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_MISSING, _CLAIMED, _HELD, _DOUBTED = range(4)  # doubted: as a record says, not yet read again


class Partial:
    """A file of known size that is being filled. Thread-safe.

    Bytes are written under a `Claim`, to which they belong alone: what has come is never written again, unless `lose`
    or `restart` gave it up. `take` opens one; close it, or `remove` it once it is an object. OSErrors pass through.
    """

    def __init__(self, directory: Path, size_bytes: int, *, exclusive: bool, fd: int, lock: FileLock) -> None:
        self.data = directory / "data"
        self.size_bytes = size_bytes
        self.exclusive = exclusive
        self._directory = directory
        self._fd = fd
        self._file_lock = lock
        self._bitmap = Bitmap(directory / "bitmap")
        self._num_units = -(-size_bytes // UNIT_BYTES)
        self._states = bytearray(self._num_units)
        self._records: dict[int, Record] = {}  # of doubted units
        self._begun: dict[int, tuple[int, int]] = {}  # unit without a claim -> bytes that have come of it, their CRC
        self._held_bytes = 0
        self._unsynced_bytes = 0
        self._lock = threading.Lock()
        self._syncing = threading.Lock()  # a sync may take seconds; only `seal` and `close` wait for it

    @classmethod
    def take(cls, directory: Path, size_bytes: int) -> Partial | None:
        """The partial in `directory`, at full size and with what came earlier; None while another process has it."""
        lock = FileLock(directory / "lock", _do_not_wait)
        with ExitStack() as undo:
            try:
                undo.enter_context(lock)
            except BlockingIOError:
                return None
            exclusive = _is_exclusive(directory / "lock")
            if exclusive and not _has_size(directory / "data", size_bytes):
                for name in ("bitmap", "data"):
                    (directory / name).unlink(missing_ok=True)
            fd = os.open(directory / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, fd)
            _allocate(fd, size_bytes, natively=exclusive)
            partial = cls(directory, size_bytes, exclusive=exclusive, fd=fd, lock=lock)
            partial._recall()
            partial._bitmap.open()
            undo.pop_all()
        return partial

    @property
    def held_bytes(self) -> int:
        """What has come, as far as is known, in whole units."""
        return self._held_bytes

    @property
    def is_complete(self) -> bool:
        return self._held_bytes == self.size_bytes

    @property
    def unsynced_bytes(self) -> int:
        return self._unsynced_bytes

    @property
    def prefix_bytes(self) -> int:
        """How much of the beginning has come."""
        with self._lock:
            unit = next((unit for unit, state in enumerate(self._states) if state < _HELD), self._num_units)
            filled, _ = self._begun.get(unit, (0, 0))
            return min(unit * UNIT_BYTES + filled, self.size_bytes)

    def is_held(self, unit: int) -> bool:
        return self._states[unit] >= _HELD

    def has_missing(self) -> bool:
        """Whether there is something to claim."""
        return self._states.find(_MISSING) >= 0

    @property
    def next_missing(self) -> int | None:
        """Where the next claim begins; None when there is nothing to claim."""
        with self._lock:
            unit = self._states.find(_MISSING)
            return unit * UNIT_BYTES + self._begun.get(unit, (0, 0))[0] if unit >= 0 else None

    def is_free(self, position: int) -> bool:
        """Whether the byte there is missing and nobody's."""
        return position < self.size_bytes and self._states[position // UNIT_BYTES] == _MISSING

    def claim(self, most_bytes: int) -> Claim | None:
        """The first bytes that are missing and nobody's, at most so many and in one chunk; None when there are none."""
        with self._lock:
            first = self._states.find(_MISSING)
            if first < 0:
                return None
            filled, crc = self._begun.pop(first, (0, 0))
            start = first * UNIT_BYTES + filled
            limit = min(start + most_bytes, (start // CHUNK_BYTES + 1) * CHUNK_BYTES, self.size_bytes)
            unit = first
            while True:
                self._states[unit] = _CLAIMED
                unit += 1
                if unit * UNIT_BYTES >= limit or self._states[unit] != _MISSING or unit in self._begun:
                    break
            return Claim(self, start, min(limit, unit * UNIT_BYTES), crc)

    def read(self, unit: int, buffer: bytearray) -> memoryview | None:
        """The bytes of a unit that is held, in `buffer`, which has UNIT_BYTES. None when they are not what was written
        by an earlier process: the unit is missing then."""
        view = memoryview(buffer)[: self._length(unit)]
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], unit * UNIT_BYTES + done)
            if count == 0:
                raise OSError(errno.EIO, "the partial file became shorter")
            done += count
        with self._lock:
            if self._states[unit] != _DOUBTED:
                return view
            if zlib.crc32(view) == self._records.pop(unit).crc:
                self._states[unit] = _HELD
                return view
        self.lose(unit, unit + 1)
        return None

    def lose(self, first: int, end: int) -> None:
        """Gives up the held units [first, end): what is there is wrong."""
        with self._lock:
            for unit in range(first, min(end, self._num_units)):
                if self._states[unit] >= _HELD:
                    self._states[unit] = _MISSING
                    self._held_bytes -= self._length(unit)
                    self._records.pop(unit, None)

    def restart(self) -> None:
        """Gives up everything, in place: a mapping of `data` goes on to show what will come. Nobody has a claim."""
        self._bitmap.clear()
        with self._lock:
            self._states = bytearray(self._num_units)
            self._records.clear()
            self._begun.clear()
            self._held_bytes = 0

    def sync(self) -> None:
        """Brings to the disk what came until now, data before records."""
        with self._syncing:
            self._unsynced_bytes = 0
            if self._fd >= 0:
                os.fdatasync(self._fd)
                self._bitmap.sync()

    def seal(self) -> None:
        """The file is whole: nobody can write to it from here on, or read here. May be called twice; `close` or
        `remove` comes next."""
        if self._fd < 0:
            return
        if not self.is_complete or os.fstat(self._fd).st_size != self.size_bytes:
            raise OSError(errno.EIO, "the partial file is not whole")
        self._close_files()

    def close(self) -> None:
        """Leaves it to whoever comes next. Nobody writes any more. May be called twice."""
        self._close_files()
        self._file_lock.__exit__(None, None, None)

    def remove(self) -> None:
        """Takes away what is left, and closes."""
        shutil.rmtree(self._directory, ignore_errors=True)  # under the lock, which goes with it
        self.close()

    def _close_files(self) -> None:
        with self._syncing:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            self._bitmap.close()

    def _length(self, unit: int) -> int:
        return min(UNIT_BYTES, self.size_bytes - unit * UNIT_BYTES)

    def _recall(self) -> None:
        for unit, record in self._bitmap.read().items():
            if unit < self._num_units and record.length == self._length(unit):
                self._states[unit] = _DOUBTED
                self._records[unit] = record
                self._held_bytes += record.length

    def _write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._fd, data, offset)
            offset, data = offset + count, data[count:]

    def _filled(self, unit: int, crc: int) -> None:
        length = self._length(unit)
        self._bitmap.append(unit, Record(length, crc))
        with self._lock:
            self._states[unit] = _HELD
            self._held_bytes += length
            self._unsynced_bytes += length

    def _release(self, position: int, end: int, crc: int) -> None:
        """[position, end) did not come; `crc` is of what did of its first unit."""
        with self._lock:
            unit, filled = divmod(position, UNIT_BYTES)
            if filled and position < self.size_bytes:
                self._begun[unit] = (filled, crc)
                self._states[unit] = _MISSING
                unit += 1
            for other in range(unit, -(-end // UNIT_BYTES)):
                if self._states[other] == _CLAIMED:
                    self._states[other] = _MISSING


class Claim:
    """The right to fill [start, end) of a partial, from front to back, by one thread. A context manager: what was not
    filled is free for others afterwards."""

    def __init__(self, partial: Partial, start: int, end: int, crc: int) -> None:
        self.start = start
        self.end = end
        self.position = start
        self._partial = partial
        self._crc = crc

    def write(self, data: bytes | memoryview) -> None:
        """Raises ValueError when that is more than was claimed; nothing is written then."""
        view = memoryview(data).cast("B")
        if self.position + len(view) > self.end:
            raise ValueError("more bytes than were asked for")
        self._partial._write(self.position, view)
        while view:
            unit, filled = divmod(self.position, UNIT_BYTES)
            part = view[: UNIT_BYTES - filled]
            crc, position = zlib.crc32(part, self._crc), self.position + len(part)
            if position % UNIT_BYTES == 0 or position == self._partial.size_bytes:
                self._partial._filled(unit, crc)
                crc = 0
            self._crc, self.position, view = crc, position, view[len(part) :]

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._partial._release(self.position, self.end, self._crc)


def _do_not_wait(_: float) -> None:
    raise BlockingIOError


def _is_exclusive(lock: Path) -> bool:
    """Whether the lock we hold on that file keeps others out: on this computer, for which it is tried, and on others,
    for which there must be none."""
    return keeps_others_out(lock) and is_local(lock)


def _has_size(path: Path, size_bytes: int) -> bool:
    with suppress(OSError):
        return path.stat().st_size == size_bytes
    return False


def _allocate(fd: int, size_bytes: int, *, natively: bool) -> None:
    """Takes the space now, so that a full disk says so before hours of fetching. Where the file system cannot, the C
    library would write to every block, in the way of others who do: there only the size is set."""
    if natively and size_bytes:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
    if os.fstat(fd).st_size != size_bytes:
        os.ftruncate(fd, size_bytes)
