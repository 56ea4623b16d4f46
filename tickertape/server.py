"""Composes the front: the supervisors and the wires on one asyncio loop, from boot's socket to the exit status."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import uvloop
from msgspec.structs import replace

from tickertape.api.admission import Admission
from tickertape.api.app import build_app
from tickertape.api.generation_defaults import GenerationDefaults
from tickertape.api.health import Readiness
from tickertape.api.isolated_renders import IsolatedRenders
from tickertape.api.keys import Keys
from tickertape.api.metrics import Metrics
from tickertape.api.model_tokenizer import ModelTokenizer
from tickertape.api.models import Models, ServedModel
from tickertape.api.output_format import OutputFormat
from tickertape.api.prompts import PromptEncoder
from tickertape.api.render_pool import RenderPool
from tickertape.api.service import Service
from tickertape.api.templates import ChatTemplate
from tickertape.api.tokenizer import read_tokenizer
from tickertape.api.watchdog import Watchdog
from tickertape.boot import WORKER, Boot
from tickertape.children import Child
from tickertape.core.backend import Backend, ModelSpec
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Configure, Fetch, Ready
from tickertape.core.ports import Engine, EngineStats, Progress
from tickertape.entrance import Entrance
from tickertape.failures import complain, first_of, reason_of
from tickertape.fetching import fetch_models
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.grpc_front import GrpcFront
from tickertape.hints import hints, url_of
from tickertape.logs import configure_logs
from tickertape.pieces import (
    admission_limits,
    call_limits,
    configure_message,
    fetch_message,
    fingerprint,
    generation_defaults,
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

__all__ = ["run"]

_FAILED: Final = 1
_MIN_RENDERS: Final = 1024

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
    async def run(self) -> None: ...
    async def stop(self, grace_s: float) -> None: ...


class _Text(NamedTuple):
    tokenizer: ModelTokenizer
    template: ChatTemplate | None
    output: OutputFormat
    defaults: GenerationDefaults


class _Hosted(NamedTuple):
    """A model whose files are there, with what will run it."""

    configure: Configure
    backend: Backend
    text: _Text
    host: Host


class Front:
    """Everything that is alive in the front. Created and run on its loop."""

    def __init__(self, settings: Settings, boot: Boot) -> None:
        clock = time.monotonic
        self._settings = settings
        self._boot = boot
        self._fetch: Fetch = fetch_message(settings)
        self._hosted: dict[str, _Hosted] = {}
        self._readiness = Readiness(clock)
        self._models = Models(self._readiness)
        view = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLog(clock)
        self._standing = Standing(self._readiness, view, len(self._fetch.models))
        self._metrics = Metrics(self._stats)
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
            complain(error)
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

    def loading(self, name: str, progress: Progress) -> None:
        self._standing.loading(name, progress)

    def ready(self, name: str, ready: Ready) -> None:
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
        workers = list(self._boot.workers)
        names: set[str] = set()
        try:
            async with (
                asyncio.TaskGroup() as group,
                aclosing(fetch_models(self._boot.fetcher, self._fetch, self.loading)) as specs,
            ):
                if grpc is not None:
                    starting = grpc.start(
                        self._service, self._readiness, self._metrics, keys=keys, plugins=self._plugins
                    )
                    group.create_task(starting)
                async for spec in specs:
                    if spec.name in names:
                        raise StartupError(f"two models are named {spec.name!r}; use NAME=MODEL", code="NameTaken")
                    names.add(spec.name)
                    group.create_task(self._host(spec, plugins, workers.pop(0) if workers else None))
        except BaseExceptionGroup as errors:
            raise first_of(errors) from errors

    async def _host(self, spec: ModelSpec, plugins: Plugins, worker: Child | None) -> None:
        spec = replace(spec, trust_remote_code=self._settings.trust_remote_code)
        backend = plugins.choose(spec, self._settings.backend)
        configure = configure_message(self._settings, spec, backend, num_models=len(self._fetch.models))
        text = await asyncio.to_thread(_read_text, Path(spec.path), plugins, self._settings)
        host = self._make_host(configure, worker)
        self._hosted[spec.name] = _Hosted(configure, backend, text, host)
        self._metrics.declare(spec.name)
        await host.run()

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
        error = hosting.exception()
        assert error is not None
        self._standing.failed(reason_of(error))
        complain(error)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), self._settings.startup_linger_s)
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


def _read_text(directory: Path, plugins: Plugins, settings: Settings) -> _Text:
    tokenizer = read_tokenizer(directory, plugins.tokenizers)
    if settings.chat_template is None:
        template = ChatTemplate.from_directory(directory)
    else:
        template = ChatTemplate.from_file(settings.chat_template, model_directory=directory)
    output = OutputFormat.of(
        plugins.parsers.values(),
        template,
        tokenizer,
        reasoning=settings.reasoning_parser,
        tools=settings.tool_parser,
    )
    return _Text(tokenizer, template, output, generation_defaults(settings, directory))
