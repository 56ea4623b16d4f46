"""What the way to ready has cost so far, and which stage of it each model is in; as Prometheus reads it.

Written by the front's loop only, read when scraped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tickertape.core.messages import WarmupCounts

__all__ = ["NAMES", "STATES", "Warmup"]

STATES: Final = (
    "plan", "wait", "slot", "cooldown", "space", "peer", "download", "unpack", "verify", "convert", "cast",
    "quantize", "turn", "prefault", "load", "warm", "ready", "failed",
)  # fmt: skip
"""In order of the way. Whatever else a backend calls a part of its loading counts as load."""

NAMES: Final = {
    "tickertape_warmup_state": "1 for the stage of its way to ready that a model is in, 0 for the others.",
    "tickertape_warmup_bytes_total": "Bytes of weights that came, by source: origin, peer, derived (made here).",
    "tickertape_warmup_hashed_bytes_total": "Bytes of weights that were hashed to verify them.",
    "tickertape_origin_requests_total": "Requests to origins of weights.",
    "tickertape_origin_429_total": "Answers of origins that asked for patience.",
    "tickertape_slot_wait_seconds_total": "Waited for a slot to read from origins.",
    "tickertape_cache_hits_total": "Files of models that were in the store already.",
    "tickertape_peer_uploads_total": "Answers to peers that asked for weights.",
    "tickertape_peer_uploaded_bytes_total": "Bytes of weights given to peers.",
}

_SOURCES: Final = ("origin", "peer", "derived")


class Warmup(Collector):
    """`counts` are over all fetchers there have been; `states` one of STATES by model."""

    def __init__(self) -> None:
        self.counts = WarmupCounts()
        self.states: dict[str, str] = {}

    def enter(self, model: str, stage: str) -> None:
        self.states[model] = stage if stage in STATES else "load"

    def collect(self) -> Iterable[Metric]:
        state = GaugeMetricFamily(
            "tickertape_warmup_state", NAMES["tickertape_warmup_state"], labels=("model", "state")
        )
        for model, current in self.states.items() or {"": ""}.items():
            for each in STATES:
                state.add_metric((model, each), each == current)
        yield state
        counts = self.counts
        name = "tickertape_warmup_bytes_total"
        by_source = CounterMetricFamily(name, NAMES[name], labels=("source",))
        for source in dict.fromkeys((*_SOURCES, *counts.num_bytes)):
            by_source.add_metric((source,), counts.num_bytes.get(source, 0))
        yield by_source
        for name, value in (
            ("tickertape_warmup_hashed_bytes_total", counts.num_hashed_bytes),
            ("tickertape_origin_requests_total", counts.num_origin_requests),
            ("tickertape_origin_429_total", counts.num_origin_429),
            ("tickertape_slot_wait_seconds_total", counts.slot_wait_s),
            ("tickertape_cache_hits_total", counts.num_cache_hits),
            ("tickertape_peer_uploads_total", counts.num_peer_uploads),
            ("tickertape_peer_uploaded_bytes_total", counts.num_uploaded_bytes),
        ):
            yield CounterMetricFamily(name, NAMES[name], value=value)
