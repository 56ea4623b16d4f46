"""The whole server in one process: its HTTP app over a real engine, with the plugins of a test, and no socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar

from starlette.types import ASGIApp

from tickertape.api.admission import Admission
from tickertape.api.app import build_app
from tickertape.api.health import Readiness
from tickertape.api.keys import Keys
from tickertape.api.metrics import Metrics
from tickertape.api.models import Models, ServedModel
from tickertape.api.output_format import OutputFormat
from tickertape.api.prompts import PromptEncoder
from tickertape.api.render_pool import RenderPool
from tickertape.api.service import Service
from tickertape.api.templates import ChatTemplate
from tickertape.api.tokenizer import read_tokenizer
from tickertape.core.engine import PagedEngine
from tickertape.core.messages import Configure
from tickertape.engine_room import build_loop, find_backend, start_engine
from tickertape.grammar.checker import CheckThreads, MatcherChecker
from tickertape.plugins import BackendOptions, Engine, Limits, ModelSpec
from tickertape.plugins.manager import Plugins
from tickertape.testing.asgi import Answer, AsgiClient

__all__ = ["LocalServer"]

T = TypeVar("T")

_PATIENCE_S: Final = 60.0
_NUM_BLOCKS: Final = 257


class LocalServer:
    """Serves `spec`, on an event loop of a thread of its own. `plugins` are plugin modules (or objects like them) by
    name, loaded besides the installed ones; `routes` and `required` are what --route-plugins and --auth-plugins say.
    To be used with `with`."""

    def __init__(
        self,
        spec: ModelSpec,
        plugins: Mapping[str, object] | None = None,
        *,
        backend: str | None = None,
        routes: Sequence[str] = (),
        required: Sequence[str] = (),
        api_keys: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        self.spec = spec
        self.plugins = Plugins.load(given=plugins or {}, process="front", routes=routes, required=required)
        self._backend = backend
        self._keys = Keys(api_keys)
        self._limits = limits or Limits(
            max_model_len=min(spec.max_model_len, 1024), max_num_seqs=8, max_batch_tokens=256, block_tokens=16
        )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="server", daemon=True)
        self._stack = AsyncExitStack()
        self.engine: Engine

    def __enter__(self) -> LocalServer:
        self._thread.start()
        try:
            self._client = AsgiClient(self.run(self._compose()))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.run(self._client.get(path, headers=headers))

    def post(self, path: str, json: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The whole answer; that of a stream has `events` and `chunks`."""
        given = {"content-type": "application/json", **(headers or {})}
        return self.run(self._client.post(path, json, headers=given))

    def complete(self, prompt: Any = "plain", headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A completion by the served model."""
        return self.post("/v1/completions", {"model": self.spec.name, "prompt": prompt, **fields}, headers)

    def chat(self, text: str = "plain", headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A chat answer by the served model."""
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"model": self.spec.name, "messages": messages, **fields}, headers)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Executes a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _compose(self) -> ASGIApp:
        spec, plugins, stack = self.spec, self.plugins, self._stack
        configure = Configure(
            epoch=0,
            spec=spec,
            backend=plugins.choose(spec, self._backend).name,
            options=BackendOptions(),
            limits=self._limits,
            num_blocks=_NUM_BLOCKS,
            plugins={},
        )
        backend = find_backend(configure, plugins)
        if backend.kind == "runner":
            parts = build_loop(backend, configure, lambda _: None, plugins)
            stack.callback(parts.weights.close)
            self.engine = PagedEngine(parts.loop, parts.plan)
            await self.engine.start()
        else:
            self.engine = await start_engine(backend, configure)
        stack.push_async_callback(self.engine.stop, 0.0)
        checks = CheckThreads()
        stack.callback(checks.close)
        tokenizer = read_tokenizer(Path(spec.path), plugins.tokenizers)
        template = ChatTemplate.from_directory(Path(spec.path))
        readiness = Readiness(time.monotonic)
        models = Models(readiness)
        models.add(
            ServedModel(
                name=spec.name,
                engine=self.engine,
                tokenizer=tokenizer,
                template=template,
                output=OutputFormat.of(plugins.parsers.values(), template, tokenizer),
                max_model_len=self._limits.max_model_len,
                vocab_size=spec.vocab_size,
                created=int(time.time()),
                capabilities=backend.capabilities,
                own_engine=backend.kind == "runner",
                grammars=MatcherChecker(checks, tokenizer, spec.vocab_size),
                processors=plugins.processors,
            )
        )
        readiness.set_state("ready")
        metrics = Metrics(lambda: {spec.name: self.engine.stats()})
        renders = RenderPool()
        stack.callback(renders.close)
        service = Service(models, Admission(), readiness, metrics, time.monotonic, PromptEncoder(renders))
        return build_app(service, models, readiness, metrics, keys=self._keys, plugins=plugins)

    def _end(self) -> None:
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.plugins.shutdown()


MakeServer = Callable[..., LocalServer]
"""What the fixture `server` gives: LocalServer's arguments, the model optional."""
