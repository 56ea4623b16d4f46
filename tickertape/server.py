"""Composes the front: the supervisors and the wires on one asyncio loop, from boot's socket to the exit status."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import uvloop
from msgspec.structs import replace

from tickertape.api.admission import Admission
from tickertape.api.app import build_app
from tickertape.api.health import Readiness
from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.keys import Keys
from tickertape.api.metrics import Metrics
from tickertape.api.models import Models, ServedModel
from tickertape.api.prompts import PromptEncoder
from tickertape.api.render_pool import RenderPool
from tickertape.api.service import Service
from tickertape.api.warmup import Warmup
from tickertape.api.watchdog import Watchdog
from tickertape.backend_choice import check_options, choose_backend
from tickertape.boot import FETCHER, WORKER, Boot
from tickertape.children import Child
from tickertape.core.backend import Backend, ModelSpec
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Configure, Fetch, Ready, Resolved, WarmupCounts
from tickertape.core.ports import Engine, EngineStats, Progress
from tickertape.entrance import Entrance
from tickertape.failures import complain, first_of, reason_of
from tickertape.fetching import Fetching
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.grpc_front import GrpcFront
from tickertape.hints import hints, url_of
from tickertape.logs import configure_logs
from tickertape.model_text import ModelText, read_text
from tickertape.pieces import (
    admission_limits,
    call_limits,
    configure_message,
    fetch_message,
    fingerprint,
    plugin_settings,
    resume_limits,
    wire_options,
)
from tickertape.plugins.manager import Plugins
from tickertape.progress import ProgressBars, ProgressLog
from tickertape.remote_engine import RemoteEngine
from tickertape.settings import Settings
from tickertape.standing import Standing
from tickertape.stop_signals import StopSignals
from tickertape.supervisor import Supervisor
from tickertape.weights.holds import Holds
from tickertape.weights.spec import served_name

__all__ = ["run"]

_FAILED: Final = 1
_MIN_RENDERS: Final = 1024
_TOUCH_S: Final = 3600.0

_log = logging.getLogger(__name__)


def run(settings: Settings, boot: Boot) -> int:
    """Serves until a signal or a failure. Returns the exit status."""
    configure_logs(settings.log_level, process="front")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, boot))


async def _serve(settings: Settings, boot: Boot) -> int:
    return await Front(settings, boot).run()


class Host(Protocol):
    """What runs a model: a Supervisor, or InProcess."""

    @property
    def engine(self) -> Engine: ...
    def update(self, spec: ModelSpec, *, complete: bool) -> None: ...
    async def run(self) -> None: ...
    async def stop(self, grace_s: float) -> None: ...


class _Hosted(NamedTuple):
    """A model whose files are there, or enough of them, with what will run it."""

    configure: Configure
    backend: Backend
    text: ModelText
    host: Host


class Front:
    """Everything that is alive in the front. Created and run on its loop."""

    def __init__(self, settings: Settings, boot: Boot) -> None:
        clock = time.monotonic
        self._settings = settings
        self._boot = boot
        self._fetch: Fetch = fetch_message(settings)
        self._resolved: dict[int, Resolved] = {}  # by the model's place among those asked for
        self._arriving: asyncio.Queue[int] = asyncio.Queue()
        self._hosted: dict[str, _Hosted] = {}
        self._readiness = Readiness(clock)
        self._models = Models(self._readiness)
        view = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLog(clock)
        names = [name or served_name(model or "demo model") for name, model in self._fetch.models]
        warmup = Warmup()
        self._standing = Standing(
            self._readiness, view, names, warmup, fetch_patience_s=settings.fetch_patience_s, clock=clock
        )
        self._holds = Holds(settings.store)
        self._metrics = Metrics(self._stats, warmup)
        # Wide enough that the admission bounds what waits, not the line before the tokenizer.
        self._renders = RenderPool(max_waiting=max(settings.max_waiting, _MIN_RENDERS))
        self._checks = CheckThreads()
        admission = Admission(admission_limits(settings))
        self._watchdog = Watchdog(self._models, admission, clock, stall_s=settings.worker_patience_s)
        self._service = Service(
            self._models,
            admission,
            self._readiness,
            self._metrics,
            clock,
            PromptEncoder(self._renders, IsolatedRenders() if settings.trust_request_chat_template else None),
            call_limits(settings),
            resume_limits(settings),
        )

    async def run(self) -> int:
        """The exit status. On a signal running streams get their grace; a failure to start stays readable on /readyz
        for a moment."""
        signals = StopSignals(self._boot.kill_children)
        asked = asyncio.create_task(signals.wait())
        loading = asyncio.create_task(asyncio.to_thread(self._load_plugins))
        await asyncio.wait({loading})
        self._plugins = Plugins.none() if loading.exception() else loading.result()
        try:
            entrance = Entrance(self._settings)
            app = build_app(
                self._service,
                self._models,
                self._readiness,
                self._metrics,
                options=wire_options(self._settings),
                keys=entrance.keys,
                plugins=self._plugins,
                watchdog=self._watchdog,
            )
        except StartupError as error:
            complain(error, self._settings.chosen_termination_log)
            return _FAILED
        http = entrance.server(app, adopt=self._boot.stop_responding())
        serving = asyncio.create_task(http.serve([self._boot.listener]))
        watching = asyncio.create_task(entrance.watch(http))
        looking = asyncio.create_task(self._watchdog.run())
        grpc = None if self._boot.reserved is None else GrpcFront(self._settings, self._boot.reserved)
        hosting = asyncio.create_task(self._host_models(loading, grpc, entrance.keys))
        try:
            await asyncio.wait((serving, hosting, asked), return_when=asyncio.FIRST_COMPLETED)
            status = await self._fail(hosting, asked) if hosting.done() else await self._drain()
        finally:
            hosting.cancel()
            watching.cancel()
            looking.cancel()
            http.should_exit = True
            await asyncio.wait((serving, hosting, watching, looking))
            if grpc is not None:
                await grpc.stop()
            await self._service.kept.close()
            asked.cancel()
            self._renders.close()
            self._checks.close()
            await asyncio.to_thread(self._plugins.shutdown)
        serving.result()
        return status

    def fetching(self, number: int, progress: Progress) -> None:
        self._end_turn()
        self._standing.fetching(number, progress)

    def resolved(self, number: int, resolved: Resolved) -> None:
        spec = replace(resolved.spec, trust_remote_code=self._settings.trust_remote_code)
        path = Path(spec.path)
        if path.parent == self._settings.store / "snapshots":
            self._holds.keep_used(path.name)  # before the fetcher goes, which held it until now
        self._models.expect(spec.name)
        self._standing.resolved(number, spec.name, complete=resolved.complete)
        self._resolved[number] = Resolved(spec, resolved.complete)
        self._arriving.put_nowait(number)

    def counted(self, counts: WarmupCounts) -> None:
        self._standing.counted(counts)

    def loading(self, name: str, progress: Progress) -> None:
        self._end_turn()
        self._standing.loading(name, progress)

    def ready(self, name: str, ready: Ready) -> None:
        self._end_turn()
        hosted = self._hosted[name]
        limits = hosted.configure.limits
        self._models.replace(
            ServedModel(
                name=name,
                engine=hosted.host.engine,
                tokenizer=hosted.text.tokenizer,
                template=hosted.text.template,
                output=hosted.text.output,
                defaults=hosted.text.defaults,
                max_model_len=ready.stats.max_model_len or limits.max_model_len,
                vocab_size=hosted.configure.spec.vocab_size,
                created=int(time.time()),
                capabilities=hosted.backend.capabilities,
                own_engine=hosted.backend.kind == "runner",
                priorities=hosted.configure.policy == "priority",
                grammars=MatcherChecker(self._checks, hosted.text.tokenizer, hosted.configure.spec.vocab_size),
                processors=self._plugins.processors,
                fingerprint=fingerprint(hosted.configure),
            )
        )
        if self._standing.ready(name):
            _log.info("ready: serving %s", ", ".join(sorted(self._hosted)))
            self._invite()

    def _end_turn(self) -> None:
        """All libraries are imported: the next server of the node may start."""
        if self._boot.turn is not None:
            self._boot.turn.release()

    def lost(self, name: str, error: TickertapeError) -> None:
        self._standing.lost(name)
        self._watchdog.forget(name)

    def _load_plugins(self) -> Plugins:
        settings = self._settings
        plugins = Plugins.load(
            **plugin_settings(settings),
            process="front",
            routes=settings.route_plugins,
            required=settings.auth_plugins,
        )
        for failed in (record for record in plugins.records if record.state == "failed"):
            _log.warning("plugin %r failed at %s: %s", failed.name, failed.stage, failed.error)
        return plugins

    async def _host_models(self, loading: asyncio.Task[Plugins], grpc: GrpcFront | None, keys: Keys) -> None:
        """Starts gRPC, fetches the models and runs each. Does not end but by an error, or by being cancelled."""
        plugins = await loading
        if (name := self._settings.backend) is not None:
            check_options(plugins.backend(name), self._fetch.compute)
        workers = list(self._boot.workers)
        start = partial(self._boot.start_child, FETCHER)
        fetching = Fetching(self._fetch, self, start, first=self._boot.fetcher)
        begun: dict[int, str] = {}
        try:
            async with asyncio.TaskGroup() as group:
                if grpc is not None:
                    starting = grpc.start(
                        self._service, self._readiness, self._metrics, keys=keys, plugins=self._plugins
                    )
                    group.create_task(starting)
                group.create_task(fetching.run())
                group.create_task(self._keep_holding())
                while True:
                    number = await self._arriving.get()
                    spec, complete = self._resolved[number].spec, self._resolved[number].complete
                    if number in begun:
                        if (hosted := self._hosted.get(spec.name)) is not None:
                            hosted.host.update(spec, complete=complete)
                    elif spec.name in begun.values():
                        raise StartupError(f"two models are named {spec.name!r}; use NAME=MODEL", code="NameTaken")
                    else:
                        begun[number] = spec.name
                        group.create_task(self._host(number, plugins, workers.pop(0) if workers else None))
        except BaseExceptionGroup as errors:
            raise first_of(errors) from errors

    async def _host(self, number: int, plugins: Plugins, worker: Child | None) -> None:
        resolved = self._resolved[number]
        options = self._fetch.compute
        backend = choose_backend(plugins, self._settings.backend, resolved.spec, options)
        configure = configure_message(self._settings, resolved.spec, backend, num_models=len(self._fetch.models))
        text = await self._read_text(number, plugins)
        resolved = self._resolved[number]  # more of it may have come meanwhile
        configure = replace(configure, spec=resolved.spec, complete=resolved.complete)
        host = self._make_host(configure, worker)
        self._hosted[configure.spec.name] = _Hosted(configure, backend, text, host)
        self._metrics.declare(configure.spec.name)
        await host.run()

    async def _read_text(self, number: int, plugins: Plugins) -> ModelText:
        while True:
            resolved = self._resolved[number]
            try:
                return await asyncio.to_thread(read_text, Path(resolved.spec.path), plugins, self._settings)
            except (StartupError, OSError):
                if self._resolved[number] is resolved:  # else it was moved under us
                    raise

    async def _keep_holding(self) -> None:
        while True:
            await asyncio.sleep(_TOUCH_S)
            self._holds.touch()

    def _make_host(self, configure: Configure, worker: Child | None) -> Host:
        if self._settings.in_process:
            from tickertape.in_process import InProcess  # brings the engine's own imports along

            return InProcess(configure, self._plugins, self)
        start = partial(self._boot.start_child, WORKER)
        patience_s = self._settings.worker_patience_s
        return Supervisor(configure, RemoteEngine(), self, start, first=worker, patience_s=patience_s)

    async def _drain(self) -> int:
        self._standing.draining()
        _log.info("draining: running requests get %.3g s", self._settings.grace_s)
        await self._stop_hosts()
        return 0

    async def _fail(self, hosting: asyncio.Task[None], asked: asyncio.Task[None]) -> int:
        self._end_turn()
        error = hosting.exception()
        assert error is not None
        self._standing.failed(reason_of(error))
        complain(error, self._settings.chosen_termination_log)
        self._boot.kill_children()  # also those that were never given anything to do
        linger_s = self._settings.startup_linger_s
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), None if math.isinf(linger_s) else linger_s)
        await self._stop_hosts()
        return _FAILED

    async def _stop_hosts(self) -> None:
        await asyncio.gather(*(hosted.host.stop(self._settings.grace_s) for hosted in self._hosted.values()))

    def _stats(self) -> Mapping[str, EngineStats]:
        return {model.name: model.engine.stats() for model in self._models.list()}

    def _invite(self) -> None:
        """Says what to type, once."""
        settings = self._settings
        url = url_of(settings.host, self._boot.port, tls=settings.tls_cert is not None)
        key = settings.api_key is not None or settings.api_keys is not None
        name, hosted = next(iter(self._hosted.items()))
        text = hints(url, name, chat=hosted.text.template is not None, key=key)
        print(f"\ntickertape serves {', '.join(self._hosted)} on {url}. Try:\n\n{text}\n", file=sys.stderr, flush=True)
