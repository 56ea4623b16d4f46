"""W2 and W3: slot files with leases of a second, and holders that are killed or frozen."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct
from report import Figure

from tests.sim.files import read_commit
from tests.sim.models import write_sharded
from tests.sim.origin import Origin

__all__ = ["contest", "most_at_once"]

_LEASE_S: Final = 1.0
_SCRIPT: Final = Path(__file__).parents[2] / "tests" / "sim" / "holder.py"
_BUFFER_BYTES: Final = 64 << 10
_PATIENCE_S: Final = 20.0


class _Said(Struct, frozen=True):
    at_s: float
    what: str
    num_bytes: int = 0


class _Holder:
    """A contender in a process of its own; what it says goes to a file."""

    def __init__(self, log: Path, words: Sequence[str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, str(_SCRIPT), *words], stdout=out)

    def said(self) -> list[_Said]:
        lines = self._log.read_bytes().split(b"\n")[:-1]
        return [_Said(**json.loads(line)) for line in lines]

    def holds(self) -> bool:
        """Whether it reads under a slot, as far as it knows."""
        said = self.said()
        return bool(said) and said[-1].what in ("acquired", "request", "read")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def contest(directory: Path, num_rounds: int, *, num_slots: int = 2, num_holders: int = 4) -> list[Figure]:
    """In each round a holder is killed (and another contender started in its place), or frozen for longer than its
    lease, in turn."""
    directory.mkdir()
    slots = directory / "slots"
    slots.mkdir()
    commit = read_commit(write_sharded(directory / "model", 16 << 20))
    everyone: list[_Holder] = []
    back_s: list[float] = []
    rng = random.Random(0)
    with Origin(bytes_s=2e6) as origin, ExitStack() as stack:
        origin.add("org/model", commit)
        url = f"{origin.url}/org/model/resolve/main/model-00001-of-00016.safetensors"

        def enter() -> _Holder:
            holder = _Holder(directory / f"{len(everyone)}.log", [str(slots), str(num_slots), str(_LEASE_S), url])
            stack.callback(holder.end)
            everyone.append(holder)
            return holder

        contenders = [enter() for _ in range(num_holders)]
        for number in range(num_rounds):
            victim = rng.choice(_await_holders(contenders, num_slots))
            time.sleep(rng.uniform(0, _LEASE_S / 2))
            if number % 2:
                victim.process.send_signal(signal.SIGSTOP)
                time.sleep(_LEASE_S * rng.uniform(1.2, 2.0))
                victim.process.send_signal(signal.SIGCONT)
            else:
                contenders.remove(victim)
                victim.end()
                back_s.append(_await_taken(contenders, time.monotonic()))
                contenders.append(enter())
        said = [holder.said() for holder in everyone]
    unchecked = max((each.num_bytes for one in said for each in one if each.what == "unchecked"), default=0)
    what = f"{num_rounds} rounds, K = {num_slots}, leases of {_LEASE_S:.0f} s"
    return [
        Figure("W2.holders", most_at_once(said), "", num_slots, what=what),
        Figure("W2.after_loss", unchecked, "bytes", _BUFFER_BYTES, what="read when the slot was lost already"),
        Figure("W3.slot_back", round(max(back_s), 2), "s", _LEASE_S + 2, what=f"worst of {len(back_s)} kills"),
    ]


def most_at_once(said: Sequence[Sequence[_Said]]) -> int:
    """The most contenders that asked or read under a slot at one time. A spell begins with a slot, and ends with the
    last that was done under it before another one or the end."""
    edges: list[tuple[float, int]] = []
    for one in said:
        spells: list[list[float]] = []
        for each in one:
            if each.what == "acquired":
                spells.append([each.at_s])
            elif each.what in ("request", "read"):
                spells[-1].append(each.at_s)
        edges += [edge for spell in spells for edge in ((spell[0], 1), (spell[-1], -1))]
    count = most = 0
    for _, change in sorted(edges):
        count += change
        most = max(most, count)
    return most


def _await_holders(contenders: Sequence[_Holder], num_slots: int) -> list[_Holder]:
    deadline = time.monotonic() + _PATIENCE_S
    while len(holding := [each for each in contenders if each.holds()]) < num_slots:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(holding)} of {num_slots} slots are held")
        time.sleep(0.05)
    return holding


def _await_taken(contenders: Sequence[_Holder], since_s: float) -> float:
    """Seconds until one of them gets a slot."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        taken = [each.at_s for one in contenders for each in one.said() if each.what == "acquired"]
        if taken and max(taken) > since_s:
            return max(taken) - since_s
        time.sleep(0.02)
    raise TimeoutError("the slot of a killed holder never came back")
