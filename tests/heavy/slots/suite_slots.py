"""W2 and W3 at full length: 1,000 runs in simulated time, 50 with real processes and leases of a second. Prints what
was seen."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.sim.contenders import Cluster
from tests.sim.kube import KubeApi
from tests.sim.slot_faults import explore
from tests.sim.slot_log import TERMS, Holders
from tickertape.weights.slots.lease import Terms, boot_clock

NUM_SLOTS = 2


def test_1000_runs_in_simulated_time(capsys: pytest.CaptureFixture[str]) -> None:
    tally = explore(num_runs=1000, num_steps=30)
    with capsys.disabled():
        print(f"\nW2, simulated: {tally}")
    assert tally.num_runs >= 1000
    assert min(tally.num_refused, tally.num_late, tally.num_returned, tally.num_halved, tally.num_raised) > 0


def test_500_returns_in_simulated_time(capsys: pytest.CaptureFixture[str]) -> None:
    returns: list[float] = []
    for seed in range(500):
        cluster = Cluster(seed, num_slots=1, num_contenders=2 + seed % 8, skew=1e-4)
        cluster.world.advance(20 + cluster.world.random.uniform(0, 5))
        while not (holders := [one for one in cluster.contenders if one.held]):
            cluster.world.advance(0.1)
        (cluster.kill if seed % 2 else cluster.stop)(holders[0])
        cluster.world.advance(cluster.terms.lease_s + 3)
        returns += cluster.returns
        cluster.close()
    with capsys.disabled():
        print(f"\nW3, simulated, {Terms().lease_s} s leases: {_summary(returns)}")
    assert len(returns) == 500
    assert max(returns) <= Terms().lease_s + 2


@pytest.mark.parametrize("where", ["files", "kubernetes"])
def test_25_runs_with_real_processes(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Holders are killed and stopped in turn; three contend for two slots, and whoever was killed is started again."""
    env = {**os.environ, "NO_PROXY": "127.0.0.1"}
    (tmp_path / "slots").mkdir()
    returns: list[float] = []
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    with KubeApi() as api:
        api.add(*(f"tickertape-slot-{name}" for name in ("0", "1", "cooldown")))
        env["KUBECONFIG"] = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        holders = Holders(where if where == "kubernetes" else str(tmp_path / "slots"), NUM_SLOTS, tmp_path, env)
        with holders.running(NUM_SLOTS + 1):
            for run in range(25):
                holder, last = holders.wait_for_a_holder(chance)
                gone_at = boot_clock()
                (holder.kill if run % 2 else holder.stop)()
                if run % 2:
                    holders.start()
                taken = holders.wait_for_the_next(last.index, last.epoch)
                returns.append(taken.at - gone_at)
                if not run % 2:
                    holders.wait_until(lambda epoch=taken.epoch: _reads(holders, epoch))  # type: ignore[misc]
                    holder.resume()
                    holders.wait_for_loss(holder, last.epoch)
            late = [(holders.num_late(holder), holder.num_resumed) for holder in holders.all]
            num_reads = len(holders.events("read"))
    with capsys.disabled():
        print(f"\nW2, real, {where}: seed {seed}, {num_reads} buffers, after SIGCONT {sum(n for n, _ in late)} of them")
        print(f"W3, real, {where}, {TERMS.lease_s} s leases: {_summary(returns)}")
    assert all(num_late <= num_resumed for num_late, num_resumed in late)
    assert max(returns) <= TERMS.lease_s + 2


def _reads(holders: Holders, epoch: int) -> bool:
    return any(read.epoch == epoch for read in holders.events("read"))


def _summary(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{len(ordered)} returns, median {ordered[len(ordered) // 2]:.2f} s, most {ordered[-1]:.2f} s"
