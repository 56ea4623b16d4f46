"""Keeps one model's worker running: starts it, tells it its model, and starts it again when it dies."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from msgspec.structs import replace

from tickertape.backoff import Backoff
from tickertape.burial import wait_for_exit
from tickertape.children import Child, describe_exit
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import EngineDead, StartupError, TickertapeError, Unavailable
from tickertape.core.messages import Configure, Emit, FromWorker, Loading, Ready, Stop, StoppedEarly
from tickertape.core.ports import Progress
from tickertape.link import AsyncLink
from tickertape.remote_engine import RemoteEngine

__all__ = ["Supervisor", "Watcher"]

_TERM_S: Final = 0.5
_STOP_S: Final = 1.0
_LOOK_S: Final = 1.0
_OF_FILES: Final = frozenset(
    {"BadHeader", "ChangedFile", "MissingShard", "MissingTensor", "NoWeights", "NotAModel", "PathNotFound",
     "TruncatedFile", "Unreadable"}
)  # fmt: skip

_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Whoever wants to know how a model stands. Called on the loop."""

    def loading(self, name: str, progress: Progress) -> None: ...
    def ready(self, name: str, ready: Ready) -> None: ...
    def lost(self, name: str, error: TickertapeError) -> None:
        """The worker died; another one is coming up."""
        ...


class _Life:
    """One worker process, from its start to its end."""

    def __init__(self, child: Child, on_message: Callable[[FromWorker], None]) -> None:
        self.child = child
        self.last_word: StoppedEarly | None = None
        self.ready_at: float | None = None
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        self.stalled = False
        self._on_message = on_message
        self.link: AsyncLink[FromWorker] = AsyncLink(
            child.socket, FromWorker, on_messages=self._take, on_close=self._end
        )

    def _take(self, messages: list[FromWorker]) -> None:
        for message in messages:
            self._on_message(message)

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()


class Supervisor:
    """Runs `configure` in workers, one after another, and attaches each to `engine` while it lives.

    The socket's end is the sign of death: it comes at once, also for a SIGKILL. A worker that owes answers and says
    nothing for `patience_s` is killed; it would speak every second that brings a step. `start_child` is called on the
    loop's thread, which must be the main thread; `first` is a worker that was started before.
    """

    def __init__(
        self,
        configure: Configure,
        engine: RemoteEngine,
        watcher: Watcher,
        start_child: Callable[[], Child],
        *,
        first: Child | None = None,
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configure = configure
        self.engine = engine
        self._watcher = watcher
        self._start_child = start_child
        self._first = first
        self._patience_s = patience_s
        self._clock = clock
        self._moved_at = clock()
        self._backoff = Backoff(clock)
        self._updated = asyncio.Event()
        self._life: _Life | None = None
        self._was_ready = False
        self._stopping = False

    @property
    def name(self) -> str:
        return self._configure.spec.name

    def update(self, spec: ModelSpec, *, complete: bool) -> None:
        """The model lies where `spec` says, all of it when `complete`: workers from the next one on are told so."""
        configure = replace(self._configure, spec=spec, complete=complete)
        if configure != self._configure:
            self._configure = configure
            self._updated.set()

    async def run(self) -> None:
        """Until cancelled or stopped. Raises StartupError when a first worker says why it cannot start, EngineDead
        when workers die too often."""
        epoch = 0
        while True:
            child, self._first = self._first or self._start_child(), None
            life = _Life(child, self._take)
            self._life = life
            watching = asyncio.create_task(self._watch(life))
            told = self._configure
            self._updated.clear()
            try:
                life.link.send(replace(told, epoch=epoch))
                await life.ended.wait()
                watching.cancel()
                death = await self._bury(life)
            except BaseException:
                watching.cancel()
                life.link.close()
                life.child.kill()
                raise
            if self._stopping:
                return
            epoch += 1
            if self._was_ready or life.last_word is None or self._updated.is_set():
                await self._recover(life, death)
            elif told.complete or death.code not in _OF_FILES:
                self.engine.give_up(death)
                raise death
            else:  # files that were still being fetched: the fetch may have had to begin again
                _log.warning("%s; waiting for its files", death.message)
                await self._updated.wait()

    async def stop(self, grace_s: float) -> None:
        """Lets open streams finish for `grace_s`, fails the rest, and asks the worker to end."""
        await self.engine.stop(grace_s)
        self._stopping = True
        life = self._life
        if life is None:
            return
        life.link.send(Stop())
        with suppress(TimeoutError):
            await asyncio.wait_for(life.ended.wait(), _STOP_S)

    def _take(self, message: FromWorker) -> None:
        life = self._life
        assert life is not None
        self._moved_at = self._clock()
        if isinstance(message, Emit):
            self.engine.receive(message)
        elif isinstance(message, Loading):
            self._watcher.loading(self.name, message.progress)
        elif isinstance(message, Ready):
            life.ready_at = self._clock()
            self._was_ready = True
            self.engine.attach(life.link, message)
            self._watcher.ready(self.name, message)
        else:
            life.last_word = message

    async def _watch(self, life: _Life) -> None:
        """Kills a worker that stands still: stopped, or in a step that does not end."""
        looked_at = self._clock()
        every_s = min(_LOOK_S, self._patience_s / 4)
        while not life.stalled:
            await asyncio.sleep(every_s)
            before, looked_at = looked_at, self._clock()
            # A front that stood still itself has not read yet what the worker said meanwhile.
            late = looked_at - before > self._patience_s / 2
            if late or life.ready_at is None or not self.engine.owes():
                self._moved_at = looked_at
            elif looked_at - self._moved_at >= self._patience_s:
                life.stalled = True
                os.killpg(life.child.process.pid, signal.SIGKILL)  # the socket's end tells the rest

    async def _bury(self, life: _Life) -> TickertapeError:
        """Sees to it that the process is gone. Returns what it died of."""
        if life.ready_at is not None and not self._stopping:
            restarting = Unavailable("The engine is being restarted", code="restarting", retry_after_s=1.0)
            self.engine.detach(restarting)
            self._watcher.lost(self.name, restarting)
        process = life.child.process
        await wait_for_exit(process, _TERM_S)
        ended_itself = process.poll() is not None
        if not ended_itself:
            os.killpg(process.pid, signal.SIGTERM)
            await wait_for_exit(process, _TERM_S)
        life.child.kill()
        if life.last_word is not None:
            error = life.last_word.failure.error()
            return error if isinstance(error, StartupError) else StartupError(error.message, code="WorkerFailed")
        if life.stalled:
            how = f"made no step for {self._patience_s:.3g} s with requests open, and was killed"
        elif life.error and not (ended_itself and isinstance(life.error, OSError)):
            how = f"broke its link ({life.error})"
        else:
            how = describe_exit(process.returncode)
        return EngineDead(f"the worker of {self.name} {how}")

    async def _recover(self, life: _Life, death: TickertapeError) -> None:
        lived_s = self._clock() - life.ready_at if life.ready_at is not None else 0.0
        delay_s = self._backoff.died(lived_s)
        if delay_s is None:
            self.engine.give_up(EngineDead("The engine has failed and cannot be restarted"))
            raise EngineDead(f"the worker of {self.name} dies again and again; the last time: {death.message}")
        _log.error("%s; starting another in %.1f s", death.message, delay_s)
        await asyncio.sleep(delay_s)
