"""Small file operations that survive a power cut: what is renamed into place was synced before."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from tickertape.core.errors import StartupError

__all__ = ["fsync_directory", "fsync_file", "unwritable", "write_atomically"]


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:
        with suppress(OSError):  # what memory holds is not what is on the disk, and the next sync would not say so
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        raise
    finally:
        os.close(fd)


def fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never a part. Makes the parent directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def unwritable(error: OSError, doing: str) -> StartupError:
    """The one-line reason for a store that could not be written to."""
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StartupError(f"no space left in the weights store while {doing}", code="NoSpace")
    where = f": {error.filename}" if error.filename else ""
    why = error.strerror or str(error)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        problem = f"the weights store is read-only and incomplete: {doing} failed ({why.lower()}{where})"
        return StartupError(problem, code="ReadOnlyStore")
    return StartupError(f"the weights store failed while {doing}: {why}{where}", code="StoreFailed")
