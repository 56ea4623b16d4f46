"""A worker process: one model behind the front's socket. `python -m tickertape.worker FD`.

The main thread computes; a reader thread feeds it. The worker ends when the front says so or its socket closes, and
exits non-zero, with a last word to the front, when it cannot go on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Final, Protocol

from tickertape.children import adopt_socket, die_with_parent
from tickertape.core.backend import Backend
from tickertape.core.driver import Driver
from tickertape.core.errors import EngineDead, StartupError, TickertapeError
from tickertape.core.messages import (
    Abort,
    Configure,
    Emit,
    Failure,
    Loading,
    Ready,
    Stop,
    StoppedEarly,
    Submit,
    ToWorker,
)
from tickertape.core.ports import EngineStats, Progress
from tickertape.core.request import Request
from tickertape.core.step import StepEvents
from tickertape.engine_room import build_loop, find_backend
from tickertape.engine_worker import EngineWorker
from tickertape.link import Link, LinkError
from tickertape.logs import configure_logs
from tickertape.plugins.manager import Plugins
from tickertape.pulse import Pulse

__all__ = ["main"]

_STUCK_S: Final = 5.0

_log = logging.getLogger(__name__)


class Consumer(Protocol):
    """What takes requests once the model is loaded. Called on the reader's thread."""

    def submit(self, request: Request) -> None: ...
    def abort(self, request_id: int) -> None: ...
    def stop(self) -> None: ...


class Reader:
    """Reads the front's messages on a thread of its own. Until there is a consumer, the end means to exit at once:
    a load has nothing worth finishing."""

    def __init__(self, link: Link[ToWorker]) -> None:
        self._link = link
        self._consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def feed(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def _run(self) -> None:
        try:
            while messages := self._link.receive():
                for message in messages:
                    self._take(message)
        except (OSError, LinkError) as error:
            _log.error("the link to the front broke: %s", error)
        self._stop()

    def _take(self, message: ToWorker) -> None:
        if self._consumer is None or isinstance(message, Stop):
            self._stop()
        elif isinstance(message, Submit):
            self._consumer.submit(message.request)
        elif isinstance(message, Abort):
            for request_id in message.ids:
                self._consumer.abort(request_id)

    def _stop(self) -> None:
        if self._consumer is None:
            os._exit(0)
        self._consumer.stop()
        # A step that never ends must not outlive the front.
        patience = threading.Timer(_STUCK_S, os._exit, (1,))
        patience.daemon = True
        patience.start()


def main(fd: int) -> int:
    """The exit status."""
    die_with_parent()
    link: Link[ToWorker] = Link(adopt_socket(fd), ToWorker)
    try:
        configure = link.receive()[:1]
    except ConnectionResetError:
        configure = []
    if not configure or not isinstance(configure[0], Configure):
        link.close()
        return 0  # the front stopped before it had a model for us
    return _serve(configure[0], link)


def _serve(configure: Configure, link: Link[ToWorker]) -> int:
    configure_logs(configure.log_level, process=f"worker {configure.spec.name}")
    reader = Reader(link)
    reader.start()
    try:
        plugins = Plugins.load(**configure.plugins, process="worker")
        try:
            _serve_model(plugins, configure, link, reader)
        finally:
            plugins.shutdown()
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the front is gone, and nobody is left to serve
    except Exception as error:
        if not isinstance(error, StartupError):
            _log.error("the worker cannot go on", exc_info=error)
        with suppress(OSError):
            link.send(StoppedEarly(configure.epoch, Failure.of(_last_word(error))))
        return 1
    return 0


def _serve_model(plugins: Plugins, configure: Configure, link: Link[ToWorker], reader: Reader) -> None:
    for failed in (record for record in plugins.records if record.stage == "startup"):
        _log.warning("plugin %r failed at startup: %s", failed.name, failed.error)
    backend = find_backend(configure, plugins)
    if backend.kind == "runner":
        _serve_runner(backend, plugins, configure, link, reader)
    else:
        asyncio.run(EngineWorker(configure, link).run(backend, reader.feed))


def _serve_runner(
    backend: Backend, plugins: Plugins, configure: Configure, link: Link[ToWorker], reader: Reader
) -> None:
    epoch = configure.epoch

    def send(progress: Progress) -> None:
        link.send(Loading(epoch, progress))

    def emit(events: StepEvents, stats: EngineStats) -> None:
        failures = [(request_id, Failure.of(error)) for request_id, error in events.failures]
        link.send(Emit(epoch, events.deltas, failures, stats))

    with Pulse(send) as pulse:
        parts = build_loop(backend, configure, pulse.report, plugins)
    try:
        driver = Driver(parts.loop, emit)
        reader.feed(driver)
        # What is alive now stays alive: the collector need not look at it again in the middle of a step.
        gc.collect()
        gc.freeze()
        link.send(Ready(epoch, parts.plan, parts.num_blocks, parts.loop.stats()))
        driver.run()
    finally:
        parts.loop.close()


def _last_word(error: Exception) -> TickertapeError:
    if isinstance(error, TickertapeError):
        return error
    return EngineDead(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
