"""W12: pods started at once on one node, beside one alone."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs
from report import Figure
from scenarios.common import Scale, probes, site

from tests.sim.probes import Deployment

__all__ = ["together_on_one_node"]


def together_on_one_node(directory: Path, scale: Scale) -> list[Figure]:
    """`scale.num_pods` of them; each set begins with an empty store."""
    alone_s, _, _ = _started(directory / "alone", structs.replace(scale, num_pods=1))
    first_s, all_s, ratio = _started(directory / "together", scale)
    return [
        Figure("W12.alone", round(alone_s, 2), "s", what="one cold pod"),
        Figure("W12.first_ready", round(first_s / alone_s, 3), "x alone", 1.2, what=f"of {scale.num_pods}"),
        Figure("W12.all_ready", round(all_s / alone_s / scale.num_pods, 3), "x serial", 1.1),
        Figure("W12.origin_bytes", round(ratio, 3), "x model", 1.05),
    ]


def _started(directory: Path, scale: Scale) -> tuple[float, float, float]:
    """Seconds until the first and until all were ready, and the origin's bytes by the model's."""
    with site(directory, scale) as place, Deployment(place.pods(), probes(scale)) as deployment:
        all_s = deployment.wait_ready(60 + 4 * place.ideal_s)
        if all_s is None:
            raise TimeoutError(f"{deployment.num_ready} of {scale.num_pods} pods ready: {place.directory}")
        first_s = min(event.at_s for event in deployment.events if event.what == "ready") - deployment.started_s
        return first_s, all_s, place.origin.log.num_bytes / place.commit.size_bytes
