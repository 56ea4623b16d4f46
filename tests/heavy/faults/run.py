"""Fetches that are disturbed by a seed, then one that is not: `python -m tests.heavy.faults.run [NUM_RUNS [SEED]]`.

Each run does real work in processes of its own: SIGKILL at any point, flipped bytes, answers that end early or are of
the wrong kind, a full disk, and two processes where locks keep nobody out. After each disturbance nothing wrong may be
published; in the end an undisturbed run must complete. Then 20 kills of a larger model: what comes twice is bounded.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.heavy.faults.world import (
    KINDS,
    PIECE_BYTES,
    Model,
    World,
    dies_at_event,
    with_full_disk,
    without_flock,
    wrong_objects,
)
from tickertape.core.errors import StartupError
from tickertape.weights.partial import UNIT_BYTES

_NUM_KILLS: Final = 20
_CONNECTIONS: Final = 8
_EXPECTED: Final = frozenset({"CorruptDownload", "FetchFailed", "NoSpace", "RevisionMoved"})
_FAILED, _BROKEN = 1, 2
_UNDISTURBED_S: Final = 60.0


def main(num_runs: int, first_seed: int) -> int:
    logging.disable()  # the fetches say a lot about what is done to them
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        num_jobs = min(os.cpu_count() or 1, num_runs)
        shards = []
        for job in range(num_jobs):
            seeds = range(first_seed + job, first_seed + num_runs, num_jobs)
            shards.append(in_process(functools.partial(shard, Path(name) / str(job), seeds)))
        bad = sum(ended(pid) != 0 for pid in shards)
        lost = kills(Path(name) / "kills", first_seed)
    bound = _CONNECTIONS * (UNIT_BYTES + PIECE_BYTES)
    print(f"{num_runs} runs, seeds {first_seed} to {first_seed + num_runs - 1}, in {time.monotonic() - started:.0f} s")
    print(f"W5: {_NUM_KILLS} kills, at most {max(lost) / 2**20:.1f} MiB came twice, bound {bound / 2**20:.0f} MiB")
    if bad or max(lost) > bound:
        print("FAILED", file=sys.stderr)
        return 1
    print("0 wrong publishes")
    return 0


def shard(root: Path, seeds: range) -> int:
    """Returns how many failed."""
    outcomes: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        store = root / str(seed)
        store.mkdir(parents=True)
        try:
            outcomes[run(store, seed)] += 1
        except AssertionError:
            traceback.print_exc()
            failed.append(seed)
        finally:
            shutil.rmtree(store, ignore_errors=True)
    print(f"{len(seeds)} seeds: {dict(sorted(outcomes.items()))}", flush=True)
    if failed:
        print(f"failed seeds: {failed}", file=sys.stderr, flush=True)
    return len(failed)


def run(root: Path, seed: int) -> str:
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    model = Model(seed, [rng.randrange(1, 3 << 20) for _ in range(rng.randrange(1, 4))])
    for _ in range(rng.randrange(1, 4)):
        statuses = disturb(root, kind, model, rng)
        assert _BROKEN not in statuses, f"seed {seed} ({kind}): an error that is none of the expected"
        wrong = wrong_objects(root)
        assert not wrong, f"seed {seed} ({kind}): wrong objects {wrong}"
    world = World(model)
    status = ended(in_process(functools.partial(world.obtain, root)), within_s=_UNDISTURBED_S)
    assert status == 0, f"seed {seed} ({kind}): the undisturbed run ended with {status}"
    assert world.is_whole(root), f"seed {seed} ({kind}): not whole"
    assert not wrong_objects(root), f"seed {seed} ({kind}): wrong objects"
    return kind


def disturb(root: Path, kind: str, model: Model, rng: random.Random) -> list[int]:
    """The statuses of the processes: 0, _FAILED as is to be expected, _BROKEN, or minus the signal."""
    world = World(model, kind, rng.getrandbits(32), harm=rng.choice([0.1, 0.5, 1.0]))
    if kind == "kill":
        return [killed(root, world, rng)]
    if kind == "full":
        budget, seed, for_ever = rng.randrange(model.size_bytes), rng.getrandbits(32), rng.random() < 0.2

        def fill() -> None:
            with_full_disk(budget, seed, for_ever=for_ever)
            world.obtain(root)

        return [ended(in_process(fill))]
    if kind == "no flock":
        one_dies = rng.random() < 0.3
        pids: list[int] = []
        for _ in range(2):
            other = World(model, kind, rng.getrandbits(32), harm=0.2)
            other.piece_s = rng.choice([0.0, 0.001])
            other.die_after = rng.randrange(1, model.size_bytes) if one_dies and not pids else None

            def fetch(world: World = other) -> None:
                without_flock()
                world.obtain(root)

            pids.append(in_process(fetch))
        return [ended(pid) for pid in pids]
    return [ended(in_process(functools.partial(world.obtain, root)))]


def killed(root: Path, world: World, rng: random.Random) -> int:
    """At some byte, at some change of the file system, or at some moment."""
    how = rng.choice(["byte", "event", "moment"])
    if how == "byte":
        world.die_after = rng.randrange(1, world.model.size_bytes)
    number = rng.randrange(1, 120)

    def fetch() -> None:
        if how == "event":
            dies_at_event(number)
        world.obtain(root)

    pid = in_process(fetch)
    if how == "moment":
        time.sleep(rng.random() * 0.15)
        os.kill(pid, signal.SIGKILL)
    return ended(pid)


def kills(root: Path, seed: int) -> list[int]:
    """Bytes that came twice, for each kill at a random byte."""
    lost = []
    rng = random.Random(seed)
    for number in range(_NUM_KILLS):
        store = root / str(number)
        store.mkdir(parents=True)
        model = Model(number, [24 << 20, 40 << 20])
        world = World(model)
        world.die_after = rng.randrange(1, model.size_bytes)
        status = ended(in_process(functools.partial(world.obtain, store, _CONNECTIONS)))
        assert status == -signal.SIGKILL, status
        world.die_after = None
        assert ended(in_process(functools.partial(world.obtain, store, _CONNECTIONS))) == 0
        assert world.is_whole(store)
        lost.append(world.sent.value - model.size_bytes)
        shutil.rmtree(store)
    return lost


def in_process(work: Callable[[], int | None]) -> int:
    """Starts `work` in a child, whose exit status is what it gives; this process has one thread. The child's id."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = _BROKEN
    try:
        status = min(work() or 0, 99)
    except StartupError as error:
        status = _FAILED if error.code in _EXPECTED else _BROKEN
        if status == _BROKEN:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int, within_s: float | None = None) -> int:
    """Its exit status, or minus the signal; it is killed when it takes too long."""
    deadline = None if within_s is None else time.monotonic() + within_s
    while deadline is not None:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = None
        else:
            time.sleep(0.002)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in (sys.argv[1:] + ["500", "1"][len(sys.argv) - 1 :]))))
