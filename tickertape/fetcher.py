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
from typing import TYPE_CHECKING, Final

from tickertape.children import adopt_socket, die_with_parent
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.core.messages import Failure, Fetch, FetchOptions, Loading, Resolved, StoppedEarly, ToFetcher
from tickertape.core.ports import Progress
from tickertape.link import Link, LinkError
from tickertape.logs import configure_logs
from tickertape.plugins.manager import Plugins
from tickertape.pulse import Pulse
from tickertape.weights.ledger import Ledger
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

if TYPE_CHECKING:
    from tickertape.weights.peers.server import PeerServer

__all__ = ["main"]

_SHUTDOWN_S: Final = 2.0
_TEND_S: Final = 600.0

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
    """Waits on a thread for the front to hang up. A fetch can be broken off at any point and resumed, so that there is
    no need to end it gently; when there is nothing left to fetch, the rest gets a moment to shut down."""

    def __init__(self, link: Link[ToFetcher]) -> None:
        self._link = link
        self._done = threading.Event()
        self._gone = threading.Event()
        threading.Thread(target=self._run, name="front", daemon=True).start()

    def done(self) -> None:
        """All is fetched."""
        self._done.set()

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
        if self._done.is_set():
            time.sleep(_SHUTDOWN_S)
        os._exit(0)


def _fetch(fetch: Fetch, link: Link[ToFetcher], front: _Front) -> None:
    def send(progress: Progress) -> None:
        link.send(Loading(0, progress))

    ledger = Ledger()
    store = Store(Path(fetch.store))
    plugins = Plugins.load(**fetch.plugins, process="fetcher")
    with ExitStack() as stack:
        stack.callback(plugins.shutdown)
        pulse = stack.enter_context(Pulse(send, figures=ledger.counts, tell=link.send))
        serving = fetch.options.peer_port is not None
        if serving:
            stack.callback(_serve_peers(fetch.options, store, ledger).close)
        if not fetch.models:
            front.done()
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
                front.done()  # unless it wants peers to be served, it hangs up now
            link.send(Resolved(spec))
        if serving:
            pulse.quiet()
            for _ in front.until_gone(_TEND_S):
                store.holds.touch()


def _serve_peers(options: FetchOptions, store: Store, ledger: Ledger) -> PeerServer:
    """Raises StartupError."""
    from tickertape.weights.peers.server import PeerServer

    assert options.peer_port is not None
    server = PeerServer(
        store,
        options.peer_host,
        options.peer_port,
        token=options.peer_token,
        max_uploads=options.peer_uploads,
        max_mbps=options.peer_upload_mbps,
        ledger=ledger,
    )
    _log.info("weights are served to peers on port %d", server.port)
    return server


def _read_by_plugin(directory: Path, plugins: Plugins) -> bool:
    """Whether a plugin takes the tokenizer that the model has; the front asks the same when it reads it."""
    for spec in plugins.tokenizers.values():
        with suppress(Exception):  # the front says what is wrong with it
            if spec.supports(directory) is None:
                return True
    return False


def _last_word(error: Exception) -> TickertapeError:
    if isinstance(error, TickertapeError):
        return error
    if isinstance(error, OSError):
        return StartupError(f"cannot write the store: {error.strerror or error}", code="StoreFailed")
    return StartupError(f"{type(error).__name__}: {' '.join(str(error).split())}", code="FetchFailed")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
