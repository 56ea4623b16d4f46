"""Sees to it that vLLM's processes end with the worker, also when that is killed: nobody else would end them, and they
hold the device's memory.

The guardian is a small process of its own, this file run as a script (standard library only). It is told process ids on
its standard input, and kills them when that closes, which the kernel does for a process that dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["Guardian", "descendants"]

_PROC = Path("/proc")


class Guardian:
    """Guards what `descendants` gives now and did not give `before`. Made after these processes are there: one that was
    forked later would keep the pipe open. Without /proc it does nothing."""

    def __init__(self, before: frozenset[int]) -> None:
        found = descendants() - before
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # what a terminal or a supervisor sends to our group must not reach it
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{pid} {born}\n" for pid in found if (born := _born(pid)) is not None)
        self._process.stdin.flush()

    def close(self) -> None:
        """What still runs is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def descendants() -> frozenset[int]:
    """The processes that descend from this one."""
    return frozenset(_descendants(os.getpid()))


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _born(pid: int) -> str | None:
    """When the process began: an id that was given again is another process."""
    with suppress(OSError, IndexError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return None


def main() -> None:
    told = [line.split() for line in sys.stdin]
    for pid, born in told:
        if _born(int(pid)) == born:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
