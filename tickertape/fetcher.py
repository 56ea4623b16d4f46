"""The fetcher process: brings models into the store, verified and converted. `python -m tickertape.fetcher FD`.

It imports no torch and no backend's code; it writes, so that the workers need only read.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tickertape.children import adopt_socket, die_with_parent
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Failure, Fetch, Loading, Resolved, StoppedEarly, ToFetcher
from tickertape.core.ports import Progress
from tickertape.link import Link, LinkError
from tickertape.logs import configure_logs
from tickertape.plugins.manager import Plugins
from tickertape.pulse import Pulse
from tickertape.weights.ledger import Ledger
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

__all__ = ["main"]

_SHUTDOWN_S: Final = 2.0

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
    finishing = threading.Event()
    threading.Thread(target=_exit_with_front, args=(link, finishing), name="front", daemon=True).start()
    try:
        _fetch(fetch[0], link, finishing)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if not isinstance(error, TickertapeError):
            _log.error("the fetcher cannot go on", exc_info=error)
        with suppress(BrokenPipeError):
            link.send(StoppedEarly(0, Failure.of(_last_word(error))))
        return 1
    return 0


def _fetch(fetch: Fetch, link: Link[ToFetcher], finishing: threading.Event) -> None:
    def send(progress: Progress) -> None:
        link.send(Loading(0, progress))

    ledger = Ledger()
    plugins = Plugins.load(**fetch.plugins, process="fetcher")
    try:
        store = Store(Path(fetch.store))
        with Pulse(send, figures=ledger.counts, tell=link.send) as pulse:
            for number, (name, model) in enumerate(fetch.models, 1):
                spec = materialize(
                    model,
                    store=store,
                    sources=plugins.sources,
                    report=pulse.report,
                    name=name,
                    dtype=fetch.dtype,
                    reads_itself=lambda directory: _read_by_plugin(directory, plugins),
                )
                pulse.flush()
                if number == len(fetch.models):
                    finishing.set()  # the front hangs up when it has the last one
                link.send(Resolved(spec))
    finally:
        plugins.shutdown()


def _read_by_plugin(directory: Path, plugins: Plugins) -> bool:
    """Whether a plugin takes the tokenizer that the model has; the front asks the same when it reads it."""
    for spec in plugins.tokenizers.values():
        with suppress(Exception):  # the front says what is wrong with it
            if spec.supports(directory) is None:
                return True
    return False


def _exit_with_front(link: Link[ToFetcher], finishing: threading.Event) -> None:
    """A fetch can be broken off at any point and resumed: no need to end it gently. Plugins get a moment to shut down
    when there is nothing left to fetch."""
    try:
        link.receive()
    except (OSError, LinkError) as error:
        _log.error("the link to the front broke: %s", error)
    if finishing.is_set():
        time.sleep(_SHUTDOWN_S)
    os._exit(0)


def _last_word(error: Exception) -> TickertapeError:
    if isinstance(error, TickertapeError):
        return error
    if isinstance(error, OSError):
        return StartupError(f"cannot write the store: {error.strerror or error}", code="StoreFailed")
    return StartupError(f"{type(error).__name__}: {' '.join(str(error).split())}", code="FetchFailed")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
