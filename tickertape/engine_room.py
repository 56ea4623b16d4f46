"""From a Configure message to an engine that is loaded and warm: the same for a worker and for `--in-process`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from tickertape.core.backend import Backend, load_factory
from tickertape.core.engine import paged_loop
from tickertape.core.errors import PluginError, StartupError, TickertapeError
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import MemoryPlan
from tickertape.core.messages import Configure
from tickertape.core.ports import Engine, EngineStats, ModelRunner, Progress
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.free_memory import free_memory, resident_bytes
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.plugins.events import StepEvent
from tickertape.plugins.manager import Plugins
from tickertape.weights.mapping import MappedWeights

__all__ = ["PagedParts", "Report", "build_loop", "find_backend", "make", "start_engine"]

Report = Callable[[Progress], None]

_log = logging.getLogger(__name__)


class PagedParts(NamedTuple):
    """`num_blocks` per cache group, the null block included. Closing the loop closes the runner; `weights` are to be
    closed after it."""

    loop: EngineLoop
    plan: MemoryPlan
    num_blocks: tuple[int, ...]
    weights: MappedWeights


def find_backend(configure: Configure, plugins: Plugins) -> Backend:
    """Raises PluginError when there is no such backend, StartupError when it is of a kind that is not served."""
    backend = plugins.backend(configure.backend)
    if backend.kind == "predictor":
        raise StartupError(f"backend {backend.name!r} is a predictor, not a language model", code="UnsupportedBackend")
    return backend


def make(backend: Backend, configure: Configure) -> Any:
    """Calls the factory: a ModelRunner or an Engine, by `backend.kind`. Raises PluginError, StartupError."""
    factory = load_factory(backend)
    with _blamed(backend.name, "start"):
        return factory(configure.spec, configure.options)


def build_loop(backend: Backend, configure: Configure, report: Report, plugins: Plugins) -> PagedParts:
    """Makes the runner, promises its memory, loads its weights, allocates the KV cache, computes one step. Raises
    StartupError."""
    if lacking := backend.capabilities.lacking():
        _log.info("backend %s serves %s without %s", backend.name, configure.spec.name, ", ".join(lacking))
    grammars = _grammars(configure, plugins) if backend.capabilities.masks else None
    runner: ModelRunner = make(backend, configure)
    with _blamed(backend.name, "plan"):
        plan = runner.plan(configure.limits)
    _log.info(
        "memory of %s: %d MiB of weights in their files, %d MiB of private copies, %d MiB of workspace; "
        "interpreter and libraries hold %d MiB before that",
        configure.spec.name,
        plan.weight_bytes >> 20,
        plan.private_bytes >> 20,
        plan.workspace_bytes >> 20,
        resident_bytes() >> 20,
    )
    kv_cache_bytes = configure.kv_cache_bytes
    if configure.num_blocks is None and kv_cache_bytes is None:
        kv_cache_bytes = _share_of_free_memory(configure, plan)
    with _blamed(backend.name, "load"):
        weights = MappedWeights(Path(configure.spec.path))
        for progress in runner.load(weights):
            report(progress)
    with _blamed(backend.name, "allocate"):
        loop, plan, num_blocks = paged_loop(
            runner,
            configure.limits,
            backend.capabilities,
            num_blocks=configure.num_blocks,
            kv_cache_bytes=kv_cache_bytes,
            policy=configure.policy,
            grammars=grammars,
            processors=plugins.processors,
            on_step=_teller(configure.spec.name, plugins),
        )
    report(Progress("warm", 0, 1, "steps"))
    with _blamed(backend.name, "warm up"):
        _warm(loop)
    if grammars is not None and (reason := grammars.ready()):
        _log.warning("%s cannot follow grammars: %s", configure.spec.name, reason)
    report(Progress("warm", 1, 1, "steps"))
    return PagedParts(loop, plan, num_blocks, weights)


def _grammars(configure: Configure, plugins: Plugins) -> MatcherCompiler:
    """Its vocabulary is read while the weights are."""
    spec = configure.spec
    return MatcherCompiler(
        spec.vocab_size, lambda: model_vocabulary(Path(spec.path), spec.vocab_size, plugins.tokenizers)
    )


async def start_engine(backend: Backend, configure: Configure) -> Engine:
    """Makes and starts an engine that brings its own scheduler. Raises StartupError."""
    options = replace(
        configure.options,
        limits=configure.limits,
        num_blocks=configure.num_blocks,
        kv_cache_bytes=configure.kv_cache_bytes,
    )
    engine: Engine = make(backend, replace(configure, options=options))
    with _blamed(backend.name, "start"):
        await engine.start()
    return engine


def _share_of_free_memory(configure: Configure, plan: MemoryPlan) -> int:
    """Before anything is loaded: what the plan speaks for is still free then, mapped weights too, whose page cache
    counts as free."""
    free = free_memory()
    spoken_for = plan.weight_bytes + plan.private_bytes + plan.workspace_bytes
    share = int(max(0, free.num_bytes - spoken_for) * configure.memory_share)
    _log.info(
        "KV cache of %s: (%s - %d MiB for weights and workspace) x %.3g = %d MiB",
        configure.spec.name,
        free.explanation,
        spoken_for >> 20,
        configure.memory_share,
        share >> 20,
    )
    return share


def _teller(model: str, plugins: Plugins) -> Callable[[float, EngineStats], None] | None:
    """Tells the observers of each step; None when there are none, so that the loop does not even call."""
    observers = plugins.observers
    if not observers:
        return None
    return lambda duration_s, stats: observers(StepEvent(model=model, duration_s=duration_s, stats=stats))


def _warm(loop: EngineLoop) -> None:
    """One request through the whole engine, so that the first client does not pay for lazy set-up."""
    sampling = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    loop.submit(Request(id=0, prompt=pack_tokens([0]), num_prompt_tokens=1, sampling=sampling))
    while loop.has_work():
        for _, error in loop.step().failures:
            raise error


@contextmanager
def _blamed(backend: str, action: str) -> Iterator[None]:
    """A backend's own exception becomes one line that names it."""
    try:
        yield
    except (StartupError, PluginError):
        raise
    except TickertapeError as error:
        raise StartupError(f"backend {backend!r} failed to {action}: {error.message}") from error
    except MemoryError as error:
        raise StartupError(f"backend {backend!r} ran out of memory to {action}", code="InsufficientMemory") from error
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        raise StartupError(f"backend {backend!r} failed to {action}: {type(error).__name__}: {text}") from error
