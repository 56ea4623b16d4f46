"""W10 and W11: how fast one cold pod fetches from an origin without bounds, and how it answers probes meanwhile."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from report import Figure
from scenarios.common import REPO, Scale, Site, site

from tests.sim.pods import Pod

__all__ = ["full_rate"]

_PATIENCE_S: Final = 120.0
_PERIOD_S: Final = 0.02


def full_rate(directory: Path, scale: Scale, *, num_runs: int = 3) -> list[Figure]:
    """Each run fetches the same shards once with curl (to files, then sync) and once with a pod, verified; the order
    alternates. `scale.origin_bytes_s` is for the origin's worst case only: it is not paced here."""
    ours, theirs, firsts, waits = [], [], [], []
    with site(directory, scale) as place:
        place.origin.pace.bytes_s = None
        for number in range(num_runs):
            for one in (_curl, _fetch) if number % 2 else (_fetch, _curl):
                subprocess.run(["sync"], check=True)
                if one is _curl:
                    theirs.append(_curl(place, directory / f"curl-{number}"))
                else:
                    seconds, first_s, latencies = _fetch(place, directory / f"store-{number}")
                    ours.append(seconds)
                    firsts.append(first_s)
                    waits += latencies
        mib = place.commit.size_bytes / 2**20
    share = statistics.median(theirs) / statistics.median(ours)
    p99_ms = statistics.quantiles(waits, n=100)[98] * 1000
    return [
        Figure("W10.curl", round(mib / statistics.median(theirs), 1), "MiB/s", what="curl to files && sync"),
        Figure("W10.share", round(share, 3), "x curl", 0.9, "higher", what="first request to published, sha256 on"),
        Figure("W11.first_livez", round(statistics.median(firsts), 3), "s", 0.5, what="after exec"),
        Figure("W11.livez_p99", round(p99_ms, 2), "ms", 20, what=f"{len(waits)} probes during a full-rate warmup"),
    ]


def _curl(place: Site, out: Path) -> float:
    out.mkdir()
    names = [name for name, file in place.commit.files.items() if file.large]
    urls = [f"{place.origin.url}/{REPO}/resolve/main/{name}" for name in names]
    words = [word for name, url in zip(names, urls, strict=True) for word in ("-o", str(out / name), url)]
    began = time.monotonic()
    subprocess.run(["curl", "-sf", *words], check=True)
    subprocess.run(["sync", *(str(out / name) for name in names)], check=True)
    return time.monotonic() - began


def _fetch(place: Site, store: Path) -> tuple[float, float, list[float]]:
    """Seconds from the first request at the origin until the snapshot was published; from exec to the first answer of
    /livez; and what each /livez took until the pod was ready."""
    pod = place.pod(place.nodes[0], 0, "--store-reserve-bytes", "0", store=store)
    first_request = len(place.origin.log.requests)
    began = time.monotonic()
    pod.start()
    try:
        _until(lambda: _get(pod, "/livez") == 200, 0.005)
        first_s = time.monotonic() - began
        latencies, published_at = [], None
        while _get(pod, "/readyz") != 200:
            if time.monotonic() - began > _PATIENCE_S:
                raise TimeoutError(pod.log.read_text()[-2000:])
            asked = time.monotonic()
            if _get(pod, "/livez") != 200:
                raise RuntimeError("/livez said that the server is not alive")
            latencies.append(time.monotonic() - asked)
            if published_at is None and any((store / "snapshots").glob("*/config.json")):
                published_at = time.monotonic()
            time.sleep(_PERIOD_S)
        published_at = published_at or time.monotonic()
    finally:
        pod.kill()
    return published_at - place.origin.log.requests[first_request].at_s, first_s, latencies


def _get(pod: Pod, path: str) -> int:
    """The status; 0 when nobody answers."""
    where = urlsplit(pod.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _until(condition: Callable[[], bool], pause_s: float) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("no answer")
        time.sleep(pause_s)
