"""Turns at starting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tickertape.start_turn import StartTurn

_HOLDER = """
import sys
from pathlib import Path
from tickertape.start_turn import StartTurn
print(StartTurn(Path(sys.argv[1]), 2).take(0), flush=True)
sys.stdin.read()
"""


def test_two_cores_have_one_turn_and_eight_have_two(tmp_path: Path) -> None:
    for num_cores, num_turns in ((1, 1), (2, 1), (8, 2)):
        turns = [StartTurn(tmp_path / str(num_cores), num_cores) for _ in range(num_turns + 1)]
        assert [turn.take(0) for turn in turns] == [True] * num_turns + [False]
        turns[0].release()
        turns[0].release()
        assert turns[-1].take(0)
        for turn in turns:
            turn.release()


def test_the_turn_of_a_killed_process_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        turn = StartTurn(tmp_path, 2)
        assert not turn.take(0)
        holder.kill()
        holder.wait()
    assert turn.take(0)
    turn.release()


def test_without_a_place_for_locks_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    turn = StartTurn(tmp_path / "file" / "locks", 2)
    assert not turn.take()
    turn.release()


def test_a_stuck_holder_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, naps = StartTurn(tmp_path, 2), [0.0]
    assert holder.take(0)
    monkeypatch.setattr("tickertape.start_turn.time.monotonic", lambda: naps[0])
    monkeypatch.setattr("tickertape.start_turn.time.sleep", lambda seconds: naps.__setitem__(0, naps[0] + seconds))
    assert not StartTurn(tmp_path, 2).take()
    assert naps[0] >= 20
    holder.release()
