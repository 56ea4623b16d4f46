"""The lock between processes: exclusive, gone with its holder, safe when its file is replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tickertape.weights.lock import FileLock

HOLD = """
import sys, time
from pathlib import Path
from typing import Any
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


@pytest.mark.parametrize("put_back", [True, False])
def test_a_replaced_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_back: bool) -> None:
    """Somebody clears the folder between open and flock: the lock must be taken on the new file."""
    path = tmp_path / "lock"
    flock, calls = fcntl.flock, 0

    def replace_first(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            path.unlink()
            if put_back:
                path.touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replace_first)
    with FileLock(path):
        assert calls == 2
        with pytest.raises(GaveUpError), FileLock(path, give_up):
            pass


def test_a_filesystem_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FileLock(tmp_path / "lock"):
        pass


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "partial"
    mkdir, calls = Path.mkdir, 0

    def removed_at_once(path: Path, **options: Any) -> None:
        nonlocal calls
        calls += 1
        mkdir(path, **options)
        if calls == 1:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", removed_at_once)
    with FileLock(folder / "lock", give_up):
        assert calls == 2


def test_a_full_disk_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes room on it takes a lock first."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "a"
    with FileLock(path), pytest.raises(GaveUpError), FileLock(path, give_up):
        pass
