"""Records in a directory that several computers share, one file per version: NAME.17 is what NAME was when it had been
written for the 17th time.

Compare-and-swap is link(2): it makes NAME.18 from a finished draft, or fails because somebody else did. That is atomic
on local file systems and on NFS, where create with O_EXCL and flock have not always been. Old versions are removed, so
a writer who slept may link a number that has been used before; he looks again afterwards, and whoever does not see his
own as the highest has lost. The highest never gets lower: a version is removed only when there are two above it.

An NFS client may list a directory from its cache. Then a change is seen late, which makes a slot come back later, and
never sooner: a link goes to the server, and a directory that we changed ourselves is read anew.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from tickertape.weights.slots.register import RegisterDenied, RegisterFault

__all__ = ["FileRegister"]

Record = TypeVar("Record", bound=Struct)

_MAX_TRIES: Final = 16
_ABANDONED_S: Final = 3600.0
_DENIED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSYS, errno.EOPNOTSUPP}
)


class FileRegister(Generic[Record]):
    """A `Register` of one record. `unreadable` stands for a version that holds no record (a file server that crashed
    may have kept the name and lost the content). The directory must exist, unless it is ours to `make`."""

    def __init__(self, directory: Path, name: str, *, empty: Record, unreadable: Record, make: bool = False) -> None:
        self._directory, self._name, self._make = directory, name, make
        self._empty, self._unreadable = empty, unreadable

    def read(self) -> tuple[Record, str]:
        try:
            for _ in range(_MAX_TRIES):
                newest = max(self._versions(), default=0)
                if not newest:
                    return self._empty, "0"
                with suppress(FileNotFoundError):  # two were written since the listing
                    return self._decode(self._path(newest).read_bytes()), str(newest)
        except OSError as error:
            if self._make and error.errno == errno.ENOENT:
                return self._empty, "0"
            raise self._fault(error) from error
        raise RegisterFault(f"the shared directory of slots does not hold still: {self._name}")

    def compare_and_swap(self, record: Record, version: str) -> str | None:
        mine = int(version) + 1
        draft = self._directory / f".{self._name}.{secrets.token_hex(8)}"
        try:
            if self._make:
                self._directory.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_bytes(msgspec.json.encode(record))
                won = self._link(draft, mine) and self._is_newest(mine)
                if won:
                    self._sweep(mine, draft)
            finally:
                with suppress(OSError):
                    draft.unlink()
        except OSError as error:
            raise self._fault(error) from error
        return str(mine) if won else None

    def _link(self, draft: Path, version: int) -> bool:
        try:
            os.link(draft, self._path(version))
        except FileExistsError:
            # NFS says so as well when the answer to our own link got lost and the client asked again.
            return draft.stat().st_nlink == 2
        return True

    def _is_newest(self, mine: int) -> bool:
        if max(self._versions(), default=mine) == mine:
            return True
        self._path(mine).unlink(missing_ok=True)
        return False

    def _sweep(self, newest: int, draft: Path) -> None:
        """Removes what is old, drafts of the killed too. The time is the file server's, as the ages are."""
        with suppress(OSError):
            now = draft.stat().st_mtime
            for version in self._versions():
                if version < newest - 1:
                    self._path(version).unlink(missing_ok=True)
            for other in self._directory.glob(f".{self._name}.*"):
                if now - other.stat().st_mtime > _ABANDONED_S:
                    other.unlink(missing_ok=True)

    def _versions(self) -> Iterator[int]:
        for name in os.listdir(self._directory):
            stem, _, version = name.rpartition(".")
            if stem == self._name and version.isdecimal():
                yield int(version)

    def _path(self, version: int) -> Path:
        return self._directory / f"{self._name}.{version}"

    def _decode(self, data: bytes) -> Record:
        try:
            return msgspec.json.decode(data, type=type(self._empty))
        except msgspec.DecodeError:
            return self._unreadable

    def _fault(self, error: OSError) -> RegisterFault:
        kind = RegisterDenied if error.errno in _DENIED else RegisterFault
        return kind(f"the shared directory of slots failed ({self._name}): {error.strerror or error}")
