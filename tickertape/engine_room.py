"""From a Configure message to an engine that is loaded and warm: the same for a worker and for `--in-process`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tickertape.core.backend import Backend, load_factory
from tickertape.core.engine import paged_loop
from tickertape.core.errors import PluginError, StartupError, TickertapeError
from tickertape.core.loop import EngineLoop
from tickertape.core.memory import Limits, MemoryPlan
from tickertape.core.messages import Configure
from tickertape.core.ports import Engine, EngineStats, ModelRunner, Progress
from tickertape.core.request import Request, SamplingParams, pack_tokens
from tickertape.free_memory import free_memory, resident_bytes
from tickertape.grammar.compiler import MatcherCompiler
from tickertape.grammar.vocabulary import model_vocabulary
from tickertape.plugins.events import StepEvent
from tickertape.plugins.manager import Plugins
from tickertape.weights.mapping import MappedWeights
from tickertape.weights.prefault import prefault
from tickertape.weights.turns import turns_of

__all__ = ["PagedParts", "Report", "build_loop", "find_backend", "make", "start_engine"]

Report = Callable[[Progress], None]

_PROMPT_ON_CPU: Final = 64
_FEW_ROWS: Final = 4
_WARM_S: Final = 2.0
"""On the CPU nothing is made for a shape: a long prompt there is time lost, and so are many rows where each costs as
much as the first."""


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
    """Makes the runner, promises its memory, loads its weights, allocates the KV cache, computes a step of the largest
    shapes. Raises StartupError.

    All of it in a turn of the node's, so that of many that start at once the first is ready as soon as if it were
    alone. Weights that are still being fetched are loaded without one, as they come: that takes as long as the fetch.
    """
    if lacking := backend.capabilities.lacking():
        _log.info("backend %s serves %s without %s", backend.name, configure.spec.name, ", ".join(lacking))
    turns = turns_of(Path(configure.store), configure.options.device, os.cpu_count() or 1) if configure.store else None
    with ExitStack() as turn:
        if turns is not None and configure.complete:
            turn.enter_context(turns.taken(report))
        grammars = _grammars(configure, plugins) if backend.capabilities.masks else None
        runner: ModelRunner = make(backend, configure)
        plan, kv_cache_bytes = _plan(backend, configure, runner)
        with _blamed(backend.name, "load"):
            weights = _load(runner, configure, report)
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
        if turns is not None and not configure.complete:
            turn.enter_context(turns.taken(report))
        report(Progress("warm", 0, 1, "steps"))
        with _blamed(backend.name, "warm up"):
            _warm(loop, configure.limits, on_cpu=configure.options.device == "cpu")
        if grammars is not None and (reason := grammars.ready()):
            _log.warning("%s cannot follow grammars: %s", configure.spec.name, reason)
        report(Progress("warm", 1, 1, "steps"))
    return PagedParts(loop, plan, num_blocks, weights)


def _plan(backend: Backend, configure: Configure, runner: ModelRunner) -> tuple[MemoryPlan, int | None]:
    """The runner's plan, and the bytes of the KV cache where no number of blocks is given."""
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
    return plan, kv_cache_bytes


def _load(runner: ModelRunner, configure: Configure, report: Report) -> MappedWeights:
    loaded = Progress("load", 0, 0)

    def wait(file: str, _: float) -> None:
        report(Progress("load", loaded.done, loaded.total, loaded.unit, detail=f"{file} is still to come"))

    directory = Path(configure.spec.path)
    if configure.complete:
        weights = MappedWeights(directory)
        prefault(weights.mappings, free_memory().num_bytes, report)
    else:
        weights = MappedWeights(directory, wait)
    for loaded in runner.load(weights):
        report(loaded)
    return weights


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


def _warm(loop: EngineLoop, limits: Limits, *, on_cpu: bool) -> None:
    """Steps of the largest shapes through the whole engine, as far as the blocks last, so that no client pays for lazy
    set-up: as many rows as there may be, and beside them a long prompt. On the CPU only if a few rows promise that it
    takes no longer than a moment."""
    capacity = loop.stats().kv_capacity_tokens
    num_rows = max(1, min(limits.max_num_seqs, capacity // limits.block_tokens))
    beside = limits.max_batch_tokens - (num_rows - 1)
    most = min(beside, limits.max_model_len - 1, capacity - num_rows * limits.block_tokens)
    length = max(1, min(most, _PROMPT_ON_CPU) if on_cpu else most)
    if not on_cpu:
        _run_dummies(loop, limits, num_rows, length, 2)
        return
    _run_dummies(loop, limits, 1, 1, 1)
    few = min(_FEW_ROWS, num_rows)
    started = time.perf_counter()
    _run_dummies(loop, limits, few, 1, 1)
    if (time.perf_counter() - started) / few * (num_rows + length) <= _WARM_S:
        _run_dummies(loop, limits, num_rows, length, 1)


def _run_dummies(loop: EngineLoop, limits: Limits, num_rows: int, length: int, num_steps: int) -> None:
    """Rows of one token, which are like rows of decoding, the last of `length`; then steps of decoding alone, where
    there is room."""
    for number in range(num_rows):
        num_tokens = length if number == num_rows - 1 else 1
        max_tokens = min(num_steps, limits.max_model_len - num_tokens)
        sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0)
        prompt = pack_tokens([0] * num_tokens)
        loop.submit(Request(id=number, prompt=prompt, num_prompt_tokens=num_tokens, sampling=sampling))
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
