"""The lock between processes: exclusive, gone with its holder, safe when its file is replaced."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tickertape.weights.lock import FileLock

HOLD = """
import sys, time
from pathlib import Path
from tickertape.weights.lock import FileLock
with FileLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


class GaveUpError(Exception):
    pass


def give_up(_: float) -> None:
    raise GaveUpError


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a"
    with FileLock(path):
        with pytest.raises(GaveUpError), FileLock(path, give_up):
            pass
        with FileLock(tmp_path / "locks" / "b", give_up):
            pass
    with FileLock(path, give_up):
        pass


def test_a_killed_holder_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(GaveUpError), FileLock(path, give_up):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    with FileLock(path, give_up):
        assert path.exists()


def test_children_do_not_inherit_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)

    def give_up_late(waited_s: float) -> None:  # the kernel closes the descriptors a moment after Popen is back
        if waited_s > 5:
            raise GaveUpError

    try:
        with FileLock(path, give_up_late):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    """Somebody clears the folder between open and flock: the lock must be taken on the new file."""
    path = tmp_path / "lock"
    path.touch()
    old = os.open(path, os.O_RDWR)
    fcntl.flock(old, fcntl.LOCK_EX)
    waits: list[float] = []

    def replace(waited_s: float) -> None:
        waits.append(waited_s)
        path.unlink()
        path.touch()
        os.close(old)

    with FileLock(path, replace):
        assert len(waits) == 1
        with pytest.raises(GaveUpError), FileLock(path, give_up):
            pass


def test_a_filesystem_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FileLock(tmp_path / "lock"):
        pass
