"""What Prometheus reads. Every name stands in `NAMES`, once; docs and dashboards are checked against it.

Label values are bounded: `model` is a served name or empty, `outcome` one of `error_table.OUTCOMES`. Nothing here may
break a request: a metric that fails is logged, once, and the request goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tickertape.api.error_table import OUTCOMES
from tickertape.api.warmup import NAMES as WARMUP_NAMES
from tickertape.api.warmup import Warmup
from tickertape.core.ports import EngineStats
from tickertape.plugins.manager import Plugins
from tickertape.plugins.records import PluginState

__all__ = ["CONTENT_TYPE", "NAMES", "Meter", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tickertape_requests_running": "Sequences being computed.",
        "tickertape_requests_waiting": "Sequences waiting for their first step.",
        "tickertape_kv_blocks_used_ratio": "Share of the KV blocks held by running sequences.",
        "tickertape_prefix_cache_hit_tokens_total": "Prompt tokens found in the prefix cache.",
        "tickertape_prompt_tokens_total": "Prompt tokens of requests that got their first token.",
        "tickertape_generated_tokens_total": "Tokens generated and counted in usage.",
        "tickertape_time_to_first_token_seconds": "From acceptance to the first token.",
        "tickertape_inter_token_latency_seconds": "Between the steps that gave one request its tokens.",
        "tickertape_request_duration_seconds": "From acceptance to the end of the answer, whatever the end.",
        "tickertape_requests_total": "Requests by outcome.",
        "tickertape_plugins": "Plugins by state: loaded, failed, blocked.",
        "tickertape_plugin_faults_total": "Failures of plugins after they had loaded.",
        **WARMUP_NAMES,
    }
)

_TTFT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_STEP_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DURATION_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_NO_MODEL: Final = ""

StatsByModel = Callable[[], Mapping[str, EngineStats]]

_log = logging.getLogger("tickertape.metrics")


class Metrics:
    """A registry of its own, so that several servers can live in one process.

    `stats` answers how each served model's engine stands, at the time of a scrape. Models named by `declare` are there
    with zeros before they are loaded. `warmup` shows how these come up.
    """

    def __init__(self, stats: StatsByModel, warmup: Warmup | None = None) -> None:
        self.registry = CollectorRegistry()
        self._declared: set[str] = set()
        self._failed: set[str] = set()
        self._cached = self._counter("tickertape_prefix_cache_hit_tokens_total")
        self._prompt = self._counter("tickertape_prompt_tokens_total")
        self._generated = self._counter("tickertape_generated_tokens_total")
        self._ttft = self._histogram("tickertape_time_to_first_token_seconds", _TTFT_BUCKETS)
        self._step = self._histogram("tickertape_inter_token_latency_seconds", _STEP_BUCKETS)
        self._duration = self._histogram("tickertape_request_duration_seconds", _DURATION_BUCKETS)
        self._requests = self._counter("tickertape_requests_total", "outcome")
        self._touch(_NO_MODEL)
        self.registry.register(_Gauges(stats, self._declared))
        self.registry.register(Warmup() if warmup is None else warmup)

    def watch(self, plugins: Plugins) -> None:
        """Shows how the plugins of this process fare. Once."""
        self.registry.register(_PluginFigures(plugins))

    def declare(self, model: str) -> None:
        """Makes the series of a model exist, at zero."""
        if model not in self._declared:
            self._declared.add(model)
            self._touch(model)

    def meter(self, model: str) -> Meter:
        """For one generation of a served model."""
        self.declare(model)
        return Meter(self, model)

    def request(self, model: str | None, outcome: str) -> None:
        """Counts an answered request. A name that is not served counts as no name."""
        label = model if model in self._declared else _NO_MODEL
        self.quietly("requests", lambda: self._requests.labels(label, outcome).inc())

    def scrape(self) -> bytes:
        return generate_latest(self.registry)

    def quietly(self, what: str, update: Callable[[], None]) -> None:
        """Runs an update; a failure of it is logged, the first time."""
        try:
            update()
        except Exception:
            self.failed(what)

    def failed(self, what: str) -> None:
        """Logs the exception being handled, once per `what`."""
        if what not in self._failed:
            self._failed.add(what)
            _log.exception("metric %s failed; it is not logged again", what)

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, NAMES[name], ("model", *labels), registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, NAMES[name], ("model",), registry=self.registry, buckets=buckets)

    def _touch(self, model: str) -> None:
        for metric in (self._cached, self._prompt, self._generated, self._ttft, self._step, self._duration):
            metric.labels(model)
        for outcome in OUTCOMES:
            self._requests.labels(model, outcome)


class Meter:
    """Measures one generation. Times are seconds on the caller's clock."""

    __slots__ = ("_generated", "_last", "_metrics", "_model", "_step")

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._generated = metrics._generated.labels(model)
        self._step = metrics._step.labels(model)
        self._last: float | None = None

    def first(self, ttft_s: float, num_prompt_tokens: int) -> None:
        metrics, model = self._metrics, self._model
        metrics.quietly("ttft", lambda: metrics._ttft.labels(model).observe(ttft_s))
        metrics.quietly("prompt_tokens", lambda: metrics._prompt.labels(model).inc(num_prompt_tokens))

    def tokens(self, now: float, num_tokens: int) -> None:
        try:
            self._generated.inc(num_tokens)
            if self._last is not None:
                self._step.observe(now - self._last)
        except Exception:
            self._metrics.failed("tokens")
        self._last = now

    def end(self, duration_s: float, num_cached_tokens: int) -> None:
        metrics, model = self._metrics, self._model
        metrics.quietly("duration", lambda: metrics._duration.labels(model).observe(duration_s))
        metrics.quietly("cached_tokens", lambda: metrics._cached.labels(model).inc(num_cached_tokens))


class _Gauges(Collector):
    """Read from the engines when scraped: nothing to keep in step, and zeros before there is an engine."""

    def __init__(self, stats: StatsByModel, declared: set[str]) -> None:
        self._stats = stats
        self._declared = declared

    def collect(self) -> Iterable[Metric]:
        try:
            stats = self._stats()
        except Exception:
            _log.exception("the engines' figures cannot be read")
            stats = {}
        models = sorted(self._declared | set(stats)) or [_NO_MODEL]
        nothing = EngineStats()
        for name, read in _GAUGES:
            family = GaugeMetricFamily(name, NAMES[name], labels=("model",))
            for model in models:
                family.add_metric((model,), read(stats.get(model, nothing)))
            yield family


class _PluginFigures(Collector):
    """Read when scraped. Label values are bounded by what is installed."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    def collect(self) -> Iterable[Metric]:
        by_state = GaugeMetricFamily("tickertape_plugins", NAMES["tickertape_plugins"], labels=("state",))
        for state in get_args(PluginState):
            by_state.add_metric((state,), sum(record.state == state for record in self._plugins.records))
        yield by_state
        faults = CounterMetricFamily(
            "tickertape_plugin_faults_total", NAMES["tickertape_plugin_faults_total"], labels=("plugin",)
        )
        for plugin, count in sorted(self._plugins.faults.counts.items()):
            faults.add_metric((plugin,), count)
        yield faults


def _used_ratio(stats: EngineStats) -> float:
    return stats.num_used_blocks / stats.num_blocks if stats.num_blocks else 0.0


_GAUGES: Final[tuple[tuple[str, Callable[[EngineStats], float]], ...]] = (
    ("tickertape_requests_running", lambda stats: stats.num_running),
    ("tickertape_requests_waiting", lambda stats: stats.num_waiting),
    ("tickertape_kv_blocks_used_ratio", _used_ratio),
)
