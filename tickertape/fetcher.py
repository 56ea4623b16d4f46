"""The fetcher process: brings models into the store, verified and converted, and serves what the store has to peers.
`python -m tickertape.fetcher FD`.

It imports no torch and no backend's code; it writes, so that the workers need only read.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tickertape.backend_choice import choose_backend
from tickertape.children import adopt_socket, die_with_parent
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Failure, Fetch, Loading, Resolved, StoppedEarly, ToFetcher
from tickertape.core.ports import Progress
from tickertape.fetch_tools import FetchTools
from tickertape.link import Link, LinkError
from tickertape.logs import configure_logs
from tickertape.plugins.manager import Plugins
from tickertape.pulse import Pulse
from tickertape.weights.ledger import Ledger
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

__all__ = ["main", "read_by_plugin"]

_SHUTDOWN_S: Final = 2.0
_TEND_S: Final = 600.0
_NICE: Final = 5

_log = logging.getLogger(__name__)


def main(fd: int) -> int:
    """The exit status."""
    die_with_parent()
    link: Link[ToFetcher] = Link(adopt_socket(fd), ToFetcher)
    try:
        fetch = link.receive()[:1]
    except ConnectionResetError:
        fetch = []
    if not fetch or not isinstance(fetch[0], Fetch):
        link.close()
        return 0  # the front stopped before it wanted anything
    configure_logs(fetch[0].log_level, process="fetcher")
    os.nice(_NICE)  # hashing at full rate: probes and what is served already come first
    front = _Front(link)
    try:
        _fetch(fetch[0], link, front)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if not isinstance(error, TickertapeError):
            _log.error("the fetcher cannot go on", exc_info=error)
        with suppress(BrokenPipeError):
            link.send(StoppedEarly(0, Failure.of(_last_word(error))))
        return 1
    return 0


class _Front:
    """Waits on a thread for the front to hang up. What is going on then is broken off: it gets a moment to give back
    what it holds of others', and can be resumed from any point."""

    def __init__(self, link: Link[ToFetcher]) -> None:
        self._link = link
        self._gone = threading.Event()
        threading.Thread(target=self._run, name="front", daemon=True).start()

    def check(self) -> None:
        """Raises BrokenPipeError when it is gone."""
        if self._gone.is_set():
            raise BrokenPipeError

    def until_gone(self, every_s: float) -> Iterator[None]:
        """Comes back now and then."""
        while not self._gone.wait(every_s):
            yield

    def _run(self) -> None:
        try:
            self._link.receive()
        except (OSError, LinkError) as error:
            _log.error("the link to the front broke: %s", error)
        self._gone.set()
        time.sleep(_SHUTDOWN_S)
        os._exit(0)


def _fetch(fetch: Fetch, link: Link[ToFetcher], front: _Front) -> None:
    def send(progress: Progress) -> None:
        link.send(Loading(0, progress))

    def report(progress: Progress) -> None:
        front.check()
        pulse.report(progress)

    ledger = Ledger()
    store = Store(Path(fetch.store), ledger, report)
    plugins = Plugins.load(**fetch.plugins, process="fetcher")
    with ExitStack() as stack:
        stack.callback(plugins.shutdown)
        pulse = stack.enter_context(Pulse(send, figures=ledger.counts, tell=link.send))
        tools = stack.enter_context(FetchTools(fetch.options, store, ledger))
        for name, model in fetch.models:
            spec = materialize(
                model,
                store=store,
                sources=plugins.sources,
                report=report,
                name=name,
                dtype=fetch.compute.dtype,
                quantization=fetch.compute.quantization,
                reads_itself=lambda directory: read_by_plugin(directory, plugins),
                fetching=tools.fetching,
                check=lambda spec: _check(spec, fetch, plugins),
                early=lambda spec: link.send(Resolved(spec, complete=False)),
            )
            pulse.flush()
            link.send(Resolved(spec))
        pulse.quiet()
        for _ in front.until_gone(_TEND_S):  # at once, unless it wants peers to be served
            tools.tend()


def read_by_plugin(directory: Path, plugins: Plugins) -> bool:
    """Whether a plugin takes the tokenizer that the model has; the front asks the same when it reads it."""
    for spec in plugins.tokenizers.values():
        with suppress(Exception):  # the front says what is wrong with it
            if spec.supports(directory) is None:
                return True
    return False


def _check(spec: ModelSpec, fetch: Fetch, plugins: Plugins) -> None:
    """Raises what the front would, which asks the same when all of the model has come."""
    if any(record.state == "failed" for record in plugins.records):
        return  # a backend may be missing here alone
    choose_backend(plugins, fetch.backend, replace(spec, trust_remote_code=fetch.trust_remote_code), fetch.compute)


def _last_word(error: Exception) -> TickertapeError:
    if isinstance(error, TickertapeError):
        return error
    if isinstance(error, OSError):
        return StartupError(f"cannot write the store: {error.strerror or error}", code="StoreFailed")
    return StartupError(f"{type(error).__name__}: {' '.join(str(error).split())}", code="FetchFailed")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
