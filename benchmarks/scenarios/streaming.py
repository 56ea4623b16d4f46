"""W13: what a serving replica's clients notice of others' warmup, when it gives them the weights."""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx
from report import Figure
from scenarios.common import Scale, probes, site

from tests.sim.pods import Pod
from tests.sim.probes import Deployment

__all__ = ["served_while_others_warm"]

_TOKEN_S: Final = 0.02
_UPLOAD_SHARE: Final = 0.6  # of the replica's link, as an operator would leave some for answers
_PATIENCE_S: Final = 90.0


def served_while_others_warm(directory: Path, scale: Scale, seconds: float) -> list[Figure]:
    """The first pod becomes ready from the origin and answers a stream; the others then warm up from it alone."""
    with site(directory, scale, token_s=_TOKEN_S) as place:
        replica, *others = place.pods("--peer-upload-mbps", str(_UPLOAD_SHARE * (scale.link_mbps or 200)))
        with Deployment([replica], probes(scale)) as serving:
            if serving.wait_ready(60 + 4 * place.ideal_s) is None:
                raise TimeoutError(replica.log.read_text()[-2000:])
            before = _gaps(replica, seconds)
            place.origin.pace.bytes_s = 1e6  # for the small files; it is no help with the weights
            with Deployment(others, probes(scale)):
                _await_peer_bytes(others)
                during = _gaps(replica, seconds)
                warming = sum(not _is_ready(pod) for pod in others)
    quiet, busy = (statistics.quantiles(gaps, n=100)[98] * 1000 for gaps in (before, during))
    return [
        Figure("W13.quiet_p99", round(quiet, 2), "ms", what=f"between tokens of {_TOKEN_S * 1000:.0f} ms"),
        Figure("W13.warming_p99", round(busy / quiet, 3), "x quiet", 1.3, what=f"{warming} others still fetching"),
    ]


def _gaps(pod: Pod, seconds: float) -> list[float]:
    """Seconds between the events of a stream."""
    with httpx.Client(base_url=pod.url, timeout=30) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "endless", "max_tokens": 1 << 15, "stream": True}
        times: list[float] = []
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                    times.append(time.monotonic())
                    if times[-1] - times[0] > seconds:
                        break
    return [later - sooner for sooner, later in pairwise(times)]


def _is_ready(pod: Pod) -> bool:
    return httpx.get(f"{pod.url}/readyz", timeout=5).status_code == 200


def _await_peer_bytes(pods: list[Pod]) -> None:
    """Until all others fetch, or wait for one on their node that does. Their imports are over then, which share this
    machine's processors with the replica, as in a cluster they do not."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            reasons = {httpx.get(f"{pod.url}/readyz", timeout=5).json().get("reason") for pod in pods}
        except httpx.TransportError:
            reasons = set()
        if "DownloadingPeer" in reasons and reasons <= {"DownloadingPeer", "DownloadingOrigin", "Queued"}:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the others do not fetch from the replica: {reasons}")
        time.sleep(0.1)
