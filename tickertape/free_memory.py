"""How much memory this process may still take: the machine's, and what its control groups leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["FreeMemory", "free_memory", "resident_bytes"]


class FreeMemory(NamedTuple):
    """`num_bytes`, and the arithmetic behind it for the log."""

    num_bytes: int
    explanation: str


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The smaller of MemAvailable and, for each control group above us that has a limit, the limit less its use. Page
    cache that the group can drop does not count as use."""
    available = _available_bytes(root / "proc/meminfo")
    found = FreeMemory(available, f"{_mib(available)} available")
    for group in _groups(root):
        limit, use = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is None or use is None:
            continue
        use -= min(use, _stat(group / "memory.stat", "inactive_file"))
        left = max(0, limit - use)
        if left < found.num_bytes:
            found = FreeMemory(left, f"{_mib(limit)} control group limit - {_mib(use)} in use = {_mib(left)}")
    return found


def resident_bytes(root: Path = Path("/")) -> int:
    """What this process holds now, shared pages included."""
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _available_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"{meminfo} does not say MemAvailable")


def _groups(root: Path) -> list[Path]:
    """The directories of our control group (version 2) and of those above it. A container sees itself as the root."""
    try:
        line = next(x for x in (root / "proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))
    except (OSError, StopIteration):
        return []
    top = root / "sys/fs/cgroup"
    group = top / line[3:].lstrip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(top))]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for name, _, value in (line.partition(" ") for line in lines) if name == key), 0)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.0f} MiB"
