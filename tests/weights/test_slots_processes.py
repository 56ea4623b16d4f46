"""Real processes that are killed and stopped while they read under a slot. The heavy suite does it 50 times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.kube import KubeApi
from tests.sim.slot_log import Holders


@pytest.fixture(params=["files", "kubernetes"])
def holders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holders]:
    """Two, for one slot."""
    env = {**os.environ, "NO_PROXY": "127.0.0.1"}
    (tmp_path / "slots").mkdir()
    with KubeApi() as api:
        api.add("tickertape-slot-0", "tickertape-slot-cooldown")
        env["KUBECONFIG"] = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        where = "kubernetes" if request.param == "kubernetes" else str(tmp_path / "slots")
        holders = Holders(where, 1, tmp_path, env)
        with holders.running(2):
            yield holders


def test_a_killed_holder_is_replaced_and_a_stopped_one_notices_when_it_goes_on(holders: Holders) -> None:
    stopped, before = holders.wait_for_a_holder()
    stopped.stop()
    taken = holders.wait_for_the_next(before.index, before.epoch)
    holders.wait_until(lambda: any(read.epoch == taken.epoch for read in holders.events("read")))
    stopped.resume()
    holders.wait_for_loss(stopped, before.epoch)

    killed, before = holders.wait_for_a_holder()
    killed.kill()
    holders.start()
    holders.wait_for_the_next(before.index, before.epoch)
    for holder in holders.all:
        assert holders.num_late(holder) <= holder.num_resumed
