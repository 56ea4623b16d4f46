"""The fetcher process: brings models into the store, verified and converted. `python -m tickertape.fetcher FD`.

It imports no torch and no backend's code; it writes, so that the workers need only read.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tickertape.children import adopt_socket, die_with_parent
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Failure, Fetch, Loading, Resolved, StoppedEarly, ToFetcher
from tickertape.core.ports import Progress
from tickertape.link import Link, LinkError
from tickertape.logs import configure_logs
from tickertape.plugins.manager import Plugins
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

__all__ = ["main"]

_log = logging.getLogger(__name__)


def main(fd: int) -> int:
    """The exit status."""
    die_with_parent()
    link: Link[ToFetcher] = Link(adopt_socket(fd), ToFetcher)
    fetch = link.receive()[:1]
    if not fetch or not isinstance(fetch[0], Fetch):
        return 0  # the front stopped before it wanted anything
    configure_logs(fetch[0].log_level, process="fetcher")
    threading.Thread(target=_exit_with_front, args=(link,), name="front", daemon=True).start()
    try:
        _fetch(fetch[0], link)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if not isinstance(error, TickertapeError):
            _log.error("the fetcher cannot go on", exc_info=error)
        with suppress(BrokenPipeError):
            link.send(StoppedEarly(0, Failure.of(_last_word(error))))
        return 1
    return 0


def _fetch(fetch: Fetch, link: Link[ToFetcher]) -> None:
    def report(progress: Progress) -> None:
        link.send(Loading(0, progress))

    plugins = Plugins.load(**fetch.plugins, process="fetcher")
    try:
        store = Store(Path(fetch.store))
        for name, model in fetch.models:
            spec = materialize(model, store=store, sources=plugins.sources, report=report, name=name)
            link.send(Resolved(spec))
    finally:
        plugins.shutdown()


def _exit_with_front(link: Link[ToFetcher]) -> None:
    """A fetch can be broken off at any point and resumed: no need to end it gently."""
    try:
        link.receive()
    except (OSError, LinkError) as error:
        _log.error("the link to the front broke: %s", error)
    os._exit(0)


def _last_word(error: Exception) -> TickertapeError:
    if isinstance(error, TickertapeError):
        return error
    if isinstance(error, OSError):
        return StartupError(f"cannot write the store: {error.strerror or error}", code="StoreFailed")
    return StartupError(f"{type(error).__name__}: {' '.join(str(error).split())}", code="FetchFailed")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
