"""W14: a full disk, a read-only store, a refused token, a revision that moves: each has its own reason, ends nothing
again and again, and publishes nothing that is not whole."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from report import Figure
from scenarios.common import REPO, Scale, Site, probes, site

from tests.sim.files import read_commit
from tests.sim.models import write_sharded
from tests.sim.pods import Pod
from tests.sim.probes import Deployment

__all__ = ["mishaps"]

_WATCH_S: Final = 8.0


def mishaps(directory: Path, scale: Scale) -> list[Figure]:
    figures = []
    with site(directory, scale) as place:
        with _mounted(directory / "small", f"size={scale.size_bytes // 2}") as small:
            figures += _judged("enospc", place, place.pod(place.nodes[0], 0, "--store-reserve-bytes", "0", store=small))
        with _mounted(directory / "fixed", "size=1m,ro") as fixed:
            figures += _judged("read_only", place, place.pod(place.nodes[0], 1, store=fixed))
        place.origin.token = "another"
        refused = place.pod(place.nodes[0], 2, store=directory / "refused", token="hf_revoked")
        figures += _judged("unauthorized", place, refused)
        place.origin.token = None
    reasons = {figure.what for figure in figures if figure.id.endswith(".reason")}
    distinct = Figure("W14.distinct_reasons", len(reasons - {""}), "", 3, "higher", what=", ".join(sorted(reasons)))
    return [*figures, distinct, *_moved(directory / "moved", scale)]


def _judged(name: str, place: Site, pod: Pod) -> list[Figure]:
    """Watches a pod that cannot get its model."""
    store = Path(pod.words[pod.words.index("--store") + 1])
    reason = ""
    with Deployment([pod], probes(place.scale)) as deployment:
        until = time.monotonic() + _WATCH_S
        while time.monotonic() < until:
            reason = _standing(pod).get("reason", reason)
            time.sleep(0.2)
        num_restarts, num_ready = deployment.num_restarts, deployment.num_ready
    partial = sum(not _is_whole(path) for path in (store / "objects").glob("*/*") if path.is_file())
    published = len(list((store / "snapshots").glob("*/model.safetensors.index.json")))
    return [
        Figure(f"W14.{name}.reason", float(bool(reason)), "", 1, "higher", what=reason),
        Figure(f"W14.{name}.restarts", num_restarts, "", 0, what=f"in {_WATCH_S:.0f} s"),
        Figure(f"W14.{name}.partial", partial + published + num_ready, "", 0, what="published though not whole"),
    ]


def _moved(directory: Path, scale: Scale) -> list[Figure]:
    """`main` gets other weights while a pod downloads: it ends up with one commit, whole."""
    with site(directory, scale) as place:
        later = read_commit(write_sharded(directory / "later", scale.size_bytes, seed=1))
        pod = place.pod(place.nodes[0], 0)
        with Deployment([pod], probes(scale)) as deployment:
            while place.origin.log.num_bytes < place.commit.size_bytes // 4:
                time.sleep(0.01)
            place.origin.repositories[REPO].move(later)
            ready_s = deployment.wait_ready(60 + 8 * place.ideal_s)
            num_restarts = deployment.num_restarts
        store = place.nodes[0].directory / "store"
        snapshots = [path for path in (store / "snapshots").iterdir() if path.is_dir()]
        whole = [
            snapshot
            for snapshot in snapshots
            for commit in (place.commit, later)
            if all(_sha256(snapshot / name) == file.sha256 for name, file in commit.files.items())
        ]
    return [
        Figure("W14.moved.ready", float(ready_s is not None), "of 1", 1, "higher"),
        Figure("W14.moved.restarts", num_restarts, "", 0),
        Figure("W14.moved.partial", len(snapshots) - len(whole), "", 0, what="snapshots of no single commit"),
    ]


@contextmanager
def _mounted(directory: Path, options: str) -> Iterator[Path]:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _standing(pod: Pod) -> Mapping[str, Any]:
    try:
        found: dict[str, Any] = httpx.get(f"{pod.url}/readyz", timeout=2).json()
    except (httpx.TransportError, ValueError):
        return {}
    return found


def _is_whole(path: Path) -> bool:
    return _sha256(path) == path.name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
