"""Whether the locks on a directory's files exclude everybody who may use them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["file_system", "why_shared"]

_SHARED: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "smb3", "smbfs", "virtiofs",
})  # fmt: skip
_MOUNTS: Final = Path("/proc/self/mountinfo")


def why_shared(root: Path) -> str | None:
    """Why others may use the store without our seeing their locks; None when the kernel of this machine sees all."""
    kind = file_system(root)
    if kind in _SHARED or kind.startswith("fuse"):
        return f"it lies on {kind}, where other machines may use it unseen"
    try:
        return None if _excludes(root) else "locks do not work on its file system"
    except OSError as error:
        return f"locks cannot be tried there: {error.strerror}"


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that holds `path`, as the kernel spells it; "" when that is not known."""
    real, found = os.path.realpath(path), (-1, "")
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split()[4])
        if real == point or real.startswith(point.rstrip("/") + "/"):
            found = max(found, (len(point), after.split()[0]), key=lambda mount: mount[0])
    return found[1]


def _unescaped(text: str) -> str:
    for escape, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(escape, character)
    return text


def _excludes(root: Path) -> bool:
    folder = root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as one, Path(one.name).open("rb") as two:
        fcntl.flock(two, fcntl.LOCK_SH)
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
