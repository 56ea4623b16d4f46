"""Which units of a file have come: an append-only list of records that any kill may cut short."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Bitmap", "Record"]

_MAGIC: Final = b"\xc5u"
_RECORD: Final = struct.Struct("<2sIIII")  # magic, unit, its length, its CRC, the CRC of what stands before
_CHECKED: Final = _RECORD.size - 4


class Record(NamedTuple):
    """The bytes of a unit when it was written: how many, and their CRC-32."""

    length: int
    crc: int


class Bitmap:
    """Records say what was written, not that it is still there: whoever trusts one reads the unit and compares the CRC.
    So records may reach the disk before or after their data, or not at all. `append` is safe from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def read(self) -> dict[int, Record]:
        """By unit; of several the last counts. What is torn or wrong costs only itself."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        found: dict[int, Record] = {}
        offset = 0
        while 0 <= offset <= len(raw) - _RECORD.size:
            magic, unit, length, crc, check = _RECORD.unpack_from(raw, offset)
            if magic == _MAGIC and zlib.crc32(raw[offset : offset + _CHECKED]) == check:
                found[unit] = Record(length, crc)
                offset += _RECORD.size
            else:
                offset = raw.find(_MAGIC, offset + 1)
        return found

    def open(self) -> None:
        """Before the first `append`."""
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, unit: int, record: Record) -> None:
        body = _RECORD.pack(_MAGIC, unit, record.length, record.crc, 0)[:_CHECKED]
        os.write(self._fd, body + zlib.crc32(body).to_bytes(4, "little"))

    def clear(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
