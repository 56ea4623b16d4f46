"""Many cold pods at once: W1 (origin bytes), W4 (restarts), W6 (429s), W7 (time), each beside huggingface_hub."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs
from report import Figure
from scenarios.common import BusyShare, Scale, Site, hub_probes, probes, site

from tests.sim.pods import Pod
from tests.sim.probes import Deployment, Probe, Probes
from tests.sim.timeline import Timeline
from tests.sim.traffic import RequestLimit, Served
from tickertape.weights.slots.lease import Terms

__all__ = ["Outcome", "cold_start", "control", "requests_too_early", "storm", "two_slots", "unhurried_control"]

_LONG_S: Final = 60.0
_IN_FLIGHT_S: Final = 0.3
_HEARD_S: Final = Terms().retry_s + _IN_FLIGHT_S  # that often everybody looks whether the cluster cools down


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
        _time_to_ready(found.ready_s, place.ideal_s),
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
    patient = Probe("/", period_s=1.0, failure_threshold=10_000)
    with site(directory, scale) as place:
        wanted = structs.replace(hub_probes(scale), startup=patient)
        patience_s = 60 + 3 * scale.num_pods * place.ideal_s
        found = _run("huggingface_hub", place, place.hub_pods(), wanted, patience_s=patience_s)
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


def storm(directory: Path, scale: Scale, num_requests: int, window_s: float) -> list[Figure]:
    """An origin that takes nothing for two windows, then few requests in each, and says 429 to all others."""
    with site(directory, scale) as place:
        place.origin.limit = RequestLimit(num_requests, window_s, shut_s=2 * window_s)
        found = _run("tickertape", place, place.pods(), probes(scale), patience_s=60 + 6 * place.ideal_s)
    with site(directory.with_name(f"{directory.name}-control"), scale) as place:
        place.origin.limit = RequestLimit(num_requests, window_s, shut_s=2 * window_s)
        theirs = _run("huggingface_hub", place, place.hub_pods(), hub_probes(scale), patience_s=6 * window_s)
    refused = [each for each in found.requests if each.status == 429]
    control = _worst_window([each for each in theirs.requests if each.status == 429], window_s)
    return [
        Figure("W6.refused", _worst_window(refused, window_s), "429s", 1, what="in the worst window; K = 1"),
        Figure("W6.early", requests_too_early(found.requests), "requests", 0, what="before Retry-After had passed"),
        Figure("W6.ready", found.num_ready, f"of {scale.num_pods}", scale.num_pods, "higher"),
        Figure("W6.control_refused", control, "429s", what="in the worst window"),
    ]


def requests_too_early(requests: Sequence[Served]) -> int:
    """Requests between a 429 and the time that its Retry-After names. What was on its way then does not count, nor what
    others did before they could hear of it."""
    barred = [(each.client, each.at_s, each.at_s + each.retry_after_s) for each in requests if each.retry_after_s]

    def is_early(asked: Served) -> bool:
        lags_s = {client: _IN_FLIGHT_S if client == asked.client else _HEARD_S for client, _, _ in barred}
        return any(at_s + lags_s[client] < asked.at_s < end_s for client, at_s, end_s in barred)

    return sum(map(is_early, requests))


def _time_to_ready(ready_s: float | None, ideal_s: float) -> Figure:
    goal = 1.5 if ideal_s >= _LONG_S else None  # below, the imports of all pods on this machine are what counts
    return Figure("W7.all_ready", _rounded(ready_s, ideal_s), "x ideal", goal, what="ideal: size / origin bandwidth")


def _worst_window(requests: Sequence[Served], window_s: float) -> int:
    return max(Counter(each.at_s // window_s for each in requests).values(), default=0)


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
