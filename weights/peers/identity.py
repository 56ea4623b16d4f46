"""Which store this is, so that the servers over one store do not take each other for peers."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["store_identity"]


def store_identity(root: Path) -> str:
    """The same in every process and container that has this directory of this machine, and different elsewhere. Makes
    the directory, so that it has an identity; where that cannot be, each call gives another one."""
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        stat = root.stat()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return hashlib.sha256(f"{boot_id}:{stat.st_dev}:{stat.st_ino}".encode()).hexdigest()[:32]
    return secrets.token_hex(16)
