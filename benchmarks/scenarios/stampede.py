"""Many cold pods at once: W1 (origin bytes), W4 (restarts), W6 (429s), W7 (time), each beside huggingface_hub."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs
from report import Figure
from scenarios.common import BusyShare, Scale, Site, hub_probes, probes, site

from tests.sim.pods import Pod
from tests.sim.probes import Deployment, Probes
from tests.sim.timeline import Timeline
from tests.sim.traffic import RequestLimit, Served

__all__ = ["Outcome", "cold_start", "control", "requests_too_early", "storm", "two_slots", "unhurried_control"]


class Outcome(Struct, frozen=True):
    """`ready_s` None: not all were, within the time given. `busy` is the share of the processors' time."""

    timeline: Timeline
    ready_s: float | None
    num_ready: int
    num_restarts: int
    origin_ratio: float
    time_ratio: float | None
    busy: float
    requests: tuple[Served, ...]


def cold_start(directory: Path, scale: Scale) -> tuple[list[Figure], Outcome]:
    """All pods at once, one slot; the startup budget is a tenth of what one download takes, or less."""
    with site(directory, scale) as place:
        found = _run("tickertape", place, place.pods(), probes(scale), patience_s=20 + 4 * place.ideal_s)
        what = f"{scale.num_pods} pods on {scale.num_nodes} nodes, startup budget {scale.budget_s:.0f} s"
    figures = [
        Figure("W1.origin_bytes", round(found.origin_ratio, 3), "x model", 1.05, what="K = 1"),
        Figure("W4.restarts", found.num_restarts, "", 0, what=what),
        Figure("W4.warmup", _rounded(found.ready_s, scale.budget_s), "x budget", what="what W4's warmup took"),
        Figure("W7.all_ready", _rounded(found.ready_s, place.ideal_s), "x ideal", 1.5, what="size / origin bandwidth"),
        Figure("stampede.cpu", round(found.busy, 2), "", what="share of the processors while it lasted"),
    ]
    return figures, found


def control(directory: Path, scale: Scale, seconds: float) -> tuple[list[Figure], Outcome]:
    """The same pods, probes and origin with huggingface_hub, for as long."""
    with site(directory, scale) as place:
        found = _run("huggingface_hub", place, place.hub_pods(), hub_probes(scale), patience_s=seconds)
    figures = [
        Figure("W4.control_restarts", found.num_restarts, "", 1, "higher", what=f"in {seconds:.0f} s"),
        Figure("W4.control_ready", found.num_ready, f"of {scale.num_pods}", what="by then"),
        Figure("W1.control_killed", round(found.origin_ratio, 2), "x model", what="origin bytes by then"),
    ]
    return figures, found


def unhurried_control(directory: Path, scale: Scale) -> list[Figure]:
    """huggingface_hub without a startup budget: what all pods together take from the origin, and how long."""
    patient = structs.replace(scale, budget_s=10_000.0)
    with site(directory, scale) as place:
        patience_s = 30 + 1.5 * scale.num_pods * place.ideal_s
        found = _run("huggingface_hub", place, place.hub_pods(), hub_probes(patient), patience_s=patience_s)
    return [
        Figure("W1.control", round(found.origin_ratio, 2), "x model", what="nobody killed"),
        Figure("W7.control", _rounded(found.ready_s, place.ideal_s), "x ideal", what="nobody killed"),
    ]


def two_slots(directory: Path, scale: Scale) -> list[Figure]:
    with site(directory, scale) as place:
        patience_s = 20 + 4 * place.ideal_s
        found = _run("tickertape", place, place.pods(num_slots=2), probes(scale), patience_s=patience_s)
    ratio = None if found.ready_s is None else round(found.origin_ratio, 3)
    return [Figure("W1.origin_bytes_k2", ratio, "x model", 1.25, what="K = 2")]


def storm(directory: Path, scale: Scale, limit: RequestLimit, window_s: float) -> list[Figure]:
    """An origin that takes few requests in each window, and says 429 to all others."""
    with site(directory, scale) as place:
        place.origin.limit = limit
        found = _run("tickertape", place, place.pods(), probes(scale), patience_s=60 + 6 * place.ideal_s)
        refused = _most_refused(found.requests, window_s)
        early = requests_too_early(found.requests)
    with site(directory.with_name(f"{directory.name}-control"), scale) as place:
        place.origin.limit = limit
        theirs = _run("huggingface_hub", place, place.hub_pods(), hub_probes(scale), patience_s=4 * window_s)
    return [
        Figure("W6.refused", refused, "429s", 1, what="in the worst window; K = 1"),
        Figure("W6.early", early, "requests", 0, what="before Retry-After had passed"),
        Figure("W6.ready", found.num_ready, f"of {scale.num_pods}", scale.num_pods, "higher"),
        Figure("W6.control_refused", _most_refused(theirs.requests, window_s), "429s", what="in the worst window"),
    ]


def requests_too_early(requests: Sequence[Served], in_flight_s: float = 0.5) -> int:
    """Requests between a 429 and the time that its Retry-After names; what was on its way then does not count."""
    barred = [(each.at_s + in_flight_s, each.at_s + each.retry_after_s) for each in requests if each.retry_after_s]
    return sum(any(start < each.at_s < end for start, end in barred) for each in requests)


def _most_refused(requests: Sequence[Served], window_s: float) -> int:
    windows = [each.at_s // window_s for each in requests if each.status == 429]
    return max((windows.count(window) for window in set(windows)), default=0)


def _run(label: str, place: Site, pods: Sequence[Pod], wanted: Probes, *, patience_s: float) -> Outcome:
    busy = BusyShare()
    with Deployment(pods, wanted) as deployment:
        ready_s = deployment.wait_ready(patience_s)
        now = time.monotonic()
        num_ready, num_bytes = deployment.num_ready, place.origin.log.num_bytes
        return Outcome(
            timeline=Timeline.of(label, deployment, place.origin.log, now),
            ready_s=ready_s,
            num_ready=num_ready,
            num_restarts=deployment.num_restarts,
            origin_ratio=num_bytes / place.commit.size_bytes,
            time_ratio=None if ready_s is None else ready_s / place.ideal_s,
            busy=busy.value(),
            requests=tuple(place.origin.log.requests),
        )


def _rounded(seconds: float | None, unit_s: float) -> float | None:
    return None if seconds is None else round(seconds / unit_s, 2)
