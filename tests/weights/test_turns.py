"""Turns between real processes: one at a time, given back by death, and nobody is kept by a store that takes none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tickertape.core.ports import Progress
from tickertape.weights.turns import Turns, turns_of

HOLDER = """
import sys
from pathlib import Path
from tickertape.weights.turns import Turns
with Turns(Path(sys.argv[1]), "cpu", int(sys.argv[2])).taken(lambda _: print("waits", flush=True)):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def hold(num_turns: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), str(num_turns)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield hold
    for process in started:
        process.kill()
        with process:
            pass


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_at_a_time_and_the_next_after_a_death(hold: Callable[[int], subprocess.Popen[str]], tmp_path: Path) -> None:
    first = hold(1)
    assert says(first) == "has it"
    second = hold(1)
    assert says(second) == "waits"
    heard: list[Progress] = []

    def give_up(progress: Progress) -> None:
        heard.append(progress)
        raise InterruptedError

    with pytest.raises(InterruptedError), Turns(tmp_path, "cpu", 1).taken(give_up):
        pytest.fail("two have one turn")
    assert heard[0].stage == "turn"
    assert heard[0].detail == f"process {first.pid} is loading"
    os.kill(first.pid, signal.SIGKILL)
    assert says(second) == "has it"
    second.kill()
    second.wait()
    with Turns(tmp_path, "cpu", 1).taken(give_up):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["turn-cpu-0"]


def test_as_many_as_there_are_turns(hold: Callable[[int], subprocess.Popen[str]]) -> None:
    assert [says(hold(2)), says(hold(2)), says(hold(2))] == ["has it", "has it", "waits"]


def test_devices_are_apart(tmp_path: Path) -> None:
    def nobody_waits(_: Progress) -> None:
        pytest.fail("somebody waits")

    turns = [turns_of(tmp_path, device, num_cores=3) for device in ("cpu", "cuda", "cuda:1")]
    with turns[0].taken(nobody_waits), turns[1].taken(nobody_waits), turns[2].taken(nobody_waits):
        names = sorted(path.name for path in (tmp_path / "locks").iterdir())
    assert names == ["turn-cpu-0", "turn-cuda-0-0", "turn-cuda-1-0"]


def test_cuda_is_its_first_device(tmp_path: Path) -> None:
    def waits(_: Progress) -> None:
        raise InterruptedError

    with turns_of(tmp_path, "cuda", 8).taken(waits), pytest.raises(InterruptedError):  # noqa: SIM117
        with turns_of(tmp_path, "cuda:0", 8).taken(waits):
            pytest.fail("two have one device")


def test_a_turn_for_every_four_cores(tmp_path: Path) -> None:
    def waits(_: Progress) -> None:
        raise InterruptedError

    with turns_of(tmp_path, "cpu", 9).taken(waits), turns_of(tmp_path, "cpu", 9).taken(waits):  # noqa: SIM117
        with pytest.raises(InterruptedError), turns_of(tmp_path, "cpu", 9).taken(waits):
            pytest.fail("three have two turns")


def test_a_store_that_takes_no_locks_keeps_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store").write_bytes(b"")  # nothing can be made below a file
    entered = 0
    with caplog.at_level("INFO"), turns_of(tmp_path / "store", "cpu", 1).taken(lambda _: None):  # noqa: SIM117
        with turns_of(tmp_path / "store", "cpu", 1).taken(lambda _: None):
            entered += 1
    assert entered == 1
    assert "nobody takes turns at loading here" in caplog.text


def test_threads_of_one_process_take_turns_too(tmp_path: Path) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with Turns(tmp_path, "cpu", 1).taken(lambda _: None):
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
