"""Whether a path lies on a file system of this computer alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["is_local"]

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def is_local(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """False for what other computers may share (NFS, Lustre, FUSE, virtiofs, ...), for what is not known to be local,
    and where the kernel does not say: a lock there may be one among the processes of this computer only, or none."""
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return False
    target, kind, depth = os.path.realpath(path), "", -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields.split()[4])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= depth:  # of several on one point the last is on top
            kind, depth = rest.split()[0], len(point)
    return kind in _LOCAL
