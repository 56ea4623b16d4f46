"""W5: one pod's download, killed at random points: what has to come again."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from report import Figure
from scenarios.common import REPO, Scale, Site, site

from tests.sim.probes import Deployment, Probe, Probes
from tests.sim.traffic import Served

__all__ = ["repeated_kills", "sent_again"]

_GRAIN_BYTES: Final = 4 << 10
_PATIENCE_S: Final = 120.0
_LONGEST_S: Final = 2.0  # a run is killed within this much of its first byte


def repeated_kills(directory: Path, scale: Scale, num_kills: int) -> list[Figure]:
    with site(directory, scale) as place:
        pod, rng = place.pod(place.nodes[0], 0), random.Random(0)
        longest_s = min(_LONGEST_S, 1.4 * place.ideal_s / num_kills)  # some is left for the last run
        runs = []
        for _ in range(num_kills):
            first = len(place.origin.log.requests)
            pod.start()
            _await_bytes(place)
            time.sleep(rng.uniform(0.05, longest_s))
            pod.kill()
            _await_silence(place)
            runs.append(place.origin.log.requests[first:])
        first = len(place.origin.log.requests)
        patient = Probe("/readyz", period_s=0.2, failure_threshold=10_000)
        with Deployment([pod], Probes(patient, patient, patient)) as deployment:
            ready_s = deployment.wait_ready(_PATIENCE_S)
        runs.append(place.origin.log.requests[first:])
        worst, total = sent_again(runs, place)
    model_mib = place.commit.size_bytes / 2**20
    return [
        Figure("W5.ready", float(ready_s is not None), "of 1", 1, "higher", what=f"after {num_kills} kills"),
        Figure("W5.worst_kill", round(worst / 2**20, 2), "MiB", 128, what=f"re-downloaded, of {model_mib:.0f}"),
        Figure("W5.mean_kill", round(total / num_kills / 2**20, 2), "MiB", max(0.02 * model_mib, 8)),
    ]


def sent_again(runs: Sequence[Sequence[Served]], place: Site) -> tuple[int, int]:
    """Bytes that had to be sent again because a run's work was lost: of the worst run, and of all."""
    last = {path: np.zeros(-(-file.size_bytes // _GRAIN_BYTES), np.int16) for path, file in place.commit.files.items()}
    lost = np.zeros(len(runs) + 1, np.int64)
    for number, run in enumerate(runs, 1):
        for each in run:
            path = each.path.rpartition("/")[2]
            if each.method != "GET" or not each.num_bytes or path not in last or REPO not in each.path:
                continue
            grains = last[path][each.start // _GRAIN_BYTES : -(-(each.start + each.num_bytes) // _GRAIN_BYTES)]
            lost += np.bincount(grains, minlength=len(lost)) * _GRAIN_BYTES
            grains[:] = number
    lost[0] = 0  # sent for the first time
    return int(lost.max()), int(lost.sum())


def _await_bytes(place: Site) -> None:
    """Until bytes of weights flow."""
    before, deadline = place.origin.log.num_bytes, time.monotonic() + _PATIENCE_S
    while place.origin.log.num_bytes < before + (1 << 18):
        if time.monotonic() > deadline:
            raise TimeoutError("the pod downloads nothing")
        time.sleep(0.01)


def _await_silence(place: Site) -> None:
    """Until the origin has noticed that its client is gone."""
    while any(request.ended_s is None for request in place.origin.log.requests):
        time.sleep(0.01)
