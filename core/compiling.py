"""Requests that wait for their grammar: compiled on threads of their own, so that nobody else waits with them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from tickertape.core.errors import InvalidRequest, Overloaded, RowError, TickertapeError
from tickertape.core.grammar import Constraint, GrammarCompiler
from tickertape.core.request import Grammar, Request, unpack_tokens

__all__ = ["Compiling", "Settled"]

_NUM_THREADS: Final = 2


class Settled(NamedTuple):
    """A request whose grammar is compiled, or the reason why it is not."""

    request: Request
    outcome: Constraint | TickertapeError


@dataclass(frozen=True, slots=True)
class _Job:
    request: Request
    begun: float
    work: Future[Constraint]


class Compiling:
    """Owned by the loop's thread; only `wake` is called on others, when a compilation has ended.

    A compilation cannot be interrupted. One that takes longer than `time_limit_s` fails its request at once, and keeps
    its thread until it is through; when it has all threads, further grammars are refused, and nothing else is.
    """

    def __init__(self, compiler: GrammarCompiler, clock: Callable[[], float], *, time_limit_s: float = 10.0) -> None:
        self._compiler = compiler
        self._clock = clock
        self._time_limit_s = time_limit_s
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
        self._jobs: dict[int, _Job] = {}
        self.wake: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, request: Request, grammar: Grammar) -> None:
        """Output that the request replays is fed to its constraint there and then."""
        work = self._threads.submit(self._compile, request, grammar)
        self._jobs[request.id] = _Job(request, self._clock(), work)
        work.add_done_callback(lambda _: self.wake())

    def drop(self, request_id: int) -> None:
        """The request is aborted; no error when it is not here."""
        if job := self._jobs.pop(request_id, None):
            job.work.cancel()

    def due(self) -> bool:
        """Whether `take` has something to give."""
        latest = self._clock() - self._time_limit_s
        return any(job.work.done() or job.begun <= latest for job in self._jobs.values())

    def take(self) -> list[Settled]:
        """What was settled since the last call, in the order of `begin`."""
        latest = self._clock() - self._time_limit_s
        ended = [job for job in self._jobs.values() if job.work.done() or job.begun <= latest]
        for job in ended:
            del self._jobs[job.request.id]
        return [Settled(job.request, _outcome(job)) for job in ended]

    def close(self) -> None:
        """Waits for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request: Request, grammar: Grammar) -> Constraint:
        constraint = self._compiler.compile(grammar, request.sampling.stop_tokens)
        if replayed := unpack_tokens(request.prompt)[request.num_prompt_tokens :]:
            constraint.accept(replayed)
        return constraint


def _outcome(job: _Job) -> Constraint | TickertapeError:
    if not job.work.done():
        if job.work.cancel():
            return Overloaded("too many grammars wait to be compiled", retry_after_s=1.0)
        return InvalidRequest("the grammar takes too long to compile", param="grammar")
    error = job.work.exception()
    if error is None:
        return job.work.result()
    if isinstance(error, TickertapeError):
        return error
    # A library's own exception, or its panic: this request's misfortune, not the engine's.
    return RowError(f"the grammar could not be compiled: {type(error).__name__}")


def _nobody() -> None:
    """Nobody waits."""
