"""Holds: shared by users, gone with them, in nobody's way where a store cannot be written to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tickertape.weights.holds import Holds, alone, claim, is_held, why_doubted

HOLD = """
import sys, time
from pathlib import Path
from tickertape.weights.holds import Holds
holds = Holds(Path(sys.argv[1]))
holds.keep_used("s")
print("held", flush=True)
time.sleep(60)
"""


def test_many_hold_and_the_last_one_lets_go(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one, two = Holds(tmp_path), Holds(tmp_path)
    assert one.keep(tmp_path / "file")
    assert one.keep(tmp_path / "file")  # twice is once
    assert two.keep(tmp_path / "file")
    one.drop(tmp_path / "file")
    assert is_held(tmp_path / "file")
    two.close()
    two.close()
    with claim(tmp_path / "file") as free:
        assert free
    assert not one.keep(tmp_path / "missing")


def test_a_hold_goes_with_its_object(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    holds = Holds(tmp_path)
    holds.keep(tmp_path / "file")
    del holds
    assert not is_held(tmp_path / "file")


def test_a_replaced_file_is_held_anew(tmp_path: Path) -> None:
    path, holds = tmp_path / "file", Holds(tmp_path)
    path.touch()
    assert holds.keep(path)
    path.rename(tmp_path / "aside")
    assert not holds.keep(path)
    assert not is_held(tmp_path / "aside")
    path.touch()
    assert holds.keep(path)
    assert is_held(path)


def test_a_killed_user_uses_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"held\n"
        assert is_held(tmp_path / "used" / "s")
        os.kill(user.pid, signal.SIGKILL)
    assert not is_held(tmp_path / "used" / "s")


def test_the_gate_waits_for_windows_and_they_for_it(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    with holds.window(create=True), Holds(tmp_path).window():
        assert is_held(tmp_path / "locks" / "gc")
    with alone(tmp_path):
        assert is_held(tmp_path / "locks" / "gc")
    assert not is_held(tmp_path / "locks" / "gc")


def test_the_last_use_is_noted_once_an_hour(tmp_path: Path) -> None:
    used = tmp_path / "used" / "s"
    Holds(tmp_path).keep_used("s")
    for age_s, touched in ((1800, False), (7200, True)):
        then = time.time() - age_s
        os.utime(used, (then, then))
        holds = Holds(tmp_path)
        holds.keep_used("s")
        assert (used.stat().st_mtime > then + 1) is touched
    os.utime(used, (then, then))
    holds.touch()
    assert used.stat().st_mtime > then + 1
    os.utime(used, (then, then))
    holds.close()  # it was in use until now
    assert used.stat().st_mtime > then + 1


def test_nothing_is_made_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    holds = Holds(tmp_path)
    with holds.window(create=True):
        holds.keep_used("s")
    assert not list(tmp_path.iterdir())


def test_locks_are_trusted_on_a_local_disk_where_they_exclude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.weights.holds.is_local", lambda _: True)
    assert why_doubted(tmp_path) is None
    assert not list((tmp_path / "locks").iterdir())
    monkeypatch.setattr("tickertape.weights.holds.fcntl.flock", lambda *_: None)
    assert "locks do not work" in str(why_doubted(tmp_path))
    monkeypatch.setattr("tickertape.weights.holds.is_local", lambda _: False)
    assert "other computers" in str(why_doubted(tmp_path))
