"""W14: a full disk, a read-only store, a refused token, a revision that moves, once or again and again: each has its
own reason, ends nothing again and again, and publishes nothing that is not whole."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import trustme
from msgspec import structs
from report import Figure
from scenarios.common import REPO, Scale, Site, probes, site

from tests.sim.files import Commit, read_commit
from tests.sim.models import write_sharded
from tests.sim.pods import Pod
from tests.sim.probes import Deployment
from tests.sim.traffic import Served

__all__ = ["mishaps"]

_WATCH_S: Final = 8.0
_MOVING_S: Final = 35.0  # four plans, and pauses in between
_SINGLE: Final = "model.safetensors"


def mishaps(directory: Path, scale: Scale) -> list[Figure]:
    figures = []
    with site(directory, scale) as place:
        with _mounted(directory / "small", f"size={scale.size_bytes // 2}") as small:
            figures += _judged("enospc", place, place.pod(place.nodes[0], 0, "--store-reserve-bytes", "0", store=small))
        with _mounted(directory / "fixed", "size=1m,ro") as fixed:
            figures += _judged("read_only", place, place.pod(place.nodes[0], 1, store=fixed))
        place.origin.token = "another"
        environment = {"HF_TOKEN": "hf_revoked"}
        refused = place.pod(place.nodes[0], 2, store=directory / "refused", environment=environment)
        figures += _judged("unauthorized", place, refused)
        place.origin.token = None
    figures += _moving_https(directory / "moving", scale)
    reasons = {figure.what for figure in figures if figure.id.endswith(".reason")}
    distinct = Figure("W14.distinct_reasons", len(reasons - {""}), "", 4, "higher", what=", ".join(sorted(reasons)))
    return [*figures, distinct, *_moved(directory / "moved", scale), *_moved_https(directory / "https", scale)]


def _judged(name: str, place: Site, pod: Pod, watch_s: float = _WATCH_S) -> list[Figure]:
    """Watches a pod that cannot get its model."""
    store = Path(pod.words[pod.words.index("--store") + 1])
    reason = ""
    with Deployment([pod], probes(place.scale)) as deployment:
        until = time.monotonic() + watch_s
        while time.monotonic() < until:
            reason = _standing(pod).get("reason", reason)
            time.sleep(0.2)
        num_restarts, num_ready = deployment.num_restarts, deployment.num_ready
    partial = sum(not _is_whole(path) for path in (store / "objects").glob("*/*") if path.is_file())
    published = sum(path.is_dir() for path in (store / "snapshots").glob("*"))
    return [
        Figure(f"W14.{name}.reason", float(bool(reason)), "", 1, "higher", what=reason),
        Figure(f"W14.{name}.restarts", num_restarts, "", 0, what=f"in {watch_s:.0f} s"),
        Figure(f"W14.{name}.partial", partial + published + num_ready, "", 0, what="published though not whole"),
    ]


def _moved(directory: Path, scale: Scale) -> list[Figure]:
    """`main` gets other weights while a pod downloads: it ends up with one commit, whole."""
    with site(directory, scale) as place:
        later = read_commit(write_sharded(directory / "later", scale.size_bytes, seed=1))
        return _overtaken("moved", place, place.pod(place.nodes[0], 0), later)


def _moved_https(directory: Path, scale: Scale) -> list[Figure]:
    """The same of one file behind a plain URL, which nothing but its ETag identifies."""
    with _https(directory, scale) as (place, pod):
        later = read_commit(_write_single(directory / "later", scale.size_bytes, seed=1))
        return _overtaken("moved_https", place, pod, later)


def _moving_https(directory: Path, scale: Scale) -> list[Figure]:
    """That file has another ETag each time a good part of it has come."""
    with _https(directory, structs.replace(scale, origin_bytes_s=4 * scale.origin_bytes_s)) as (place, pod):
        repository, counter = place.origin.repositories[REPO], itertools.count(1)

        def move(request: Served) -> None:
            # A plan asks for a byte, the header, most of the rest, and the rest, which is refused then.
            if request.path.endswith(_SINGLE) and (number := next(counter)) % 4 == 3:
                file = structs.replace(place.commit.files[_SINGLE], sha256=f"{number:064x}")
                files = {**place.commit.files, _SINGLE: file}
                repository.move(structs.replace(place.commit, sha=f"{number:040x}", files=files))

        place.origin.fault = move
        return _judged("moving_https", place, pod, _MOVING_S)


@contextmanager
def _https(directory: Path, scale: Scale) -> Iterator[tuple[Site, Pod]]:
    """A pod that asks for one range at a time, so that one of them comes last."""
    directory.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    commit = read_commit(_write_single(directory / "model", scale.size_bytes))
    with site(directory / "site", scale, commit=commit, authority=authority) as place:
        url = f"{place.origin.url}/{REPO}/resolve/main/{_SINGLE}"
        trusted = {"SSL_CERT_FILE": str(directory / "ca.pem")}
        flags = ("--origin-connections", "1", "--store-reserve-bytes", "0")
        yield place, place.pod(place.nodes[0], 0, *flags, model=url, environment=trusted)


def _write_single(directory: Path, size_bytes: int, *, seed: int = 0) -> Path:
    write_sharded(directory, size_bytes, num_shards=1, seed=seed)
    (directory / "model.safetensors.index.json").unlink()
    next(directory.glob("model-*.safetensors")).rename(directory / _SINGLE)
    return directory


def _overtaken(name: str, place: Site, pod: Pod, later: Commit) -> list[Figure]:
    """What becomes of a pod when `main` moves to `later` while it downloads."""
    with Deployment([pod], probes(place.scale)) as deployment:
        while place.origin.log.num_bytes < place.commit.size_bytes // 4:
            time.sleep(0.01)
        place.origin.repositories[REPO].move(later)
        ready_s = deployment.wait_ready(60 + 8 * place.ideal_s)
        num_restarts = deployment.num_restarts
    store = place.nodes[0].directory / "store"
    snapshots = [path for path in (store / "snapshots").iterdir() if path.is_dir()]
    whole = [snapshot for snapshot in snapshots if any(_is_of(snapshot, commit) for commit in (place.commit, later))]
    return [
        Figure(f"W14.{name}.ready", float(ready_s is not None), "of 1", 1, "higher"),
        Figure(f"W14.{name}.restarts", num_restarts, "", 0),
        Figure(f"W14.{name}.partial", len(snapshots) - len(whole), "", 0, what="snapshots of no single commit"),
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


def _is_of(snapshot: Path, commit: Commit) -> bool:
    found = {path.name: _sha256(path) for path in snapshot.iterdir()}
    return found == {name: file.sha256 for name, file in commit.files.items()}


def _is_whole(path: Path) -> bool:
    return _sha256(path) == path.name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
