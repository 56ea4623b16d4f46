"""What the scale-out scenarios share: a model at an origin, pods that fetch it, probes as a cluster would send them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import trustme
from msgspec import Struct

from tests.sim.files import Commit, read_commit
from tests.sim.models import write_sharded
from tests.sim.nodes import Node, Nodes
from tests.sim.origin import Origin
from tests.sim.pods import PEER_PORT, Pod, hub_pod, tickertape_pod
from tests.sim.probes import Probe, Probes

__all__ = ["MODEL", "REPO", "BusyShare", "Scale", "Site", "hub_probes", "probes", "site"]

REPO: Final = "org/model"
MODEL: Final = f"hf://{REPO}"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_USUAL_BUDGET_S: Final = 615.0  # 15 s of delay, then 60 probes of 10 s


class Scale(Struct, frozen=True):
    """How large a run is. `budget_s` is what startup probes allow; the pauses between restarts shrink with it."""

    num_pods: int
    num_nodes: int
    size_bytes: int
    origin_bytes_s: float
    link_mbps: float | None = None
    budget_s: float = 20.0


class Site(Struct, frozen=True):
    """Nodes that reach an origin with one model."""

    scale: Scale
    directory: Path
    nodes: tuple[Node, ...]
    origin: Origin
    commit: Commit

    @property
    def ideal_s(self) -> float:
        """What one download takes when it has the origin's whole bandwidth."""
        return self.commit.size_bytes / self.scale.origin_bytes_s

    def pods(self, *flags: str, num_slots: int = 1) -> list[Pod]:
        """Servers on all nodes in turn, which share slots and are each other's peers."""
        slots = self.directory / "slots"
        slots.mkdir(exist_ok=True)
        places = self._places()
        common = ["--origin-slots", str(slots), "--num-origin-slots", str(num_slots), "--peer-port", str(PEER_PORT)]
        common += ["--peers", ",".join(f"{node.address(number)}:{PEER_PORT}" for node, number in places)]
        common += ["--peer-token", "of-the-simulation", "--store-reserve-bytes", "0"]
        return [self.pod(node, number, *common, *flags) for node, number in places]

    def pod(
        self,
        node: Node,
        number: int,
        *flags: str,
        model: str = MODEL,
        store: Path | None = None,
        environment: Mapping[str, str] = _NOTHING,
    ) -> Pod:
        """As a chart would start it: what cannot start stays and says why."""
        flags = ("--startup-linger-s", "inf", *flags)
        environment = {"HF_ENDPOINT": self.origin.url, **environment}
        return tickertape_pod(node, number, model, *flags, store=store, environment=environment)

    def hub_pods(self) -> list[Pod]:
        return [hub_pod(node, number, REPO, endpoint=self.origin.url) for node, number in self._places()]

    def _places(self) -> list[tuple[Node, int]]:
        return [(self.nodes[n % len(self.nodes)], n // len(self.nodes)) for n in range(self.scale.num_pods)]


@contextmanager
def site(
    directory: Path,
    scale: Scale,
    *,
    token_s: float = 0.0,
    commit: Commit | None = None,
    authority: trustme.CA | None = None,
) -> Iterator[Site]:
    """With a sharded model, unless there is a `commit`; https where an `authority` vouches for the origin."""
    directory.mkdir(parents=True)
    if commit is None:
        commit = read_commit(write_sharded(directory / "model", scale.size_bytes, token_s=token_s))
    with Nodes(scale.num_nodes, directory, link_mbps=scale.link_mbps) as nodes, ExitStack() as stack:
        tls = None if authority is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if authority is not None and tls is not None:
            authority.issue_cert(nodes.outside).configure_cert(tls)
        origin = stack.enter_context(Origin(host=nodes.outside, bytes_s=scale.origin_bytes_s, tls=tls))
        origin.add(REPO, commit)
        yield Site(scale, directory, nodes.nodes, origin, commit)


def probes(scale: Scale, paths: Sequence[str] = ("/startupz", "/livez", "/readyz")) -> Probes:
    """Startup probes come ten times in the budget. Timeouts are the usual second, and liveness probes come as usual:
    processors are as fast as ever, and this machine's few are shared by all nodes."""
    startup, liveness, readiness = paths
    shrunk = scale.budget_s / _USUAL_BUDGET_S
    return Probes(
        startup=Probe(startup, period_s=scale.budget_s / 10, failure_threshold=10),
        liveness=Probe(liveness),
        readiness=Probe(readiness, period_s=1.0),
        backoff_s=10.0 * shrunk,
        max_backoff_s=300.0 * shrunk,
        grace_s=30.0 * shrunk,
    )


def hub_probes(scale: Scale) -> Probes:
    return probes(scale, ("/", "/", "/"))


class BusyShare:
    """How busy this machine's processors were since this was made, from 0 to 1."""

    def __init__(self) -> None:
        self._idle, self._total = _processor_times()

    def value(self) -> float:
        idle, total = _processor_times()
        return 1 - (idle - self._idle) / max(total - self._total, 1)


def _processor_times() -> tuple[int, int]:
    times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return times[3] + times[4], sum(times)
