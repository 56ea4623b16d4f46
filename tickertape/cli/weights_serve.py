"""`tickertape weights serve`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import click

from tickertape.cli.options import GroupedCommand, settings_options
from tickertape.cli.weights_store import plural, settings_of, stop_with, store_at
from tickertape.core.errors import StartupError
from tickertape.logs import configure_logs
from tickertape.settings import Settings

__all__ = ["serve"]


@click.command(cls=GroupedCommand)
@settings_options(
    Settings,
    only=("store", "host", "peer_port", "peer_token", "peer_uploads", "peer_upload_mbps", "log_level", "config"),
)
def serve(**values: Any) -> None:
    """Serve the store to peers, and nothing else: no model is loaded.

    For a node that keeps weights for others. Servers name it with --peers. Without --peer-port it takes a free one; the
    first line on standard output is one JSON object with "peer_port" and "pid". Stops on SIGTERM or Ctrl-C.
    """
    settings = settings_of(values)
    configure_logs(settings.log_level, process="weights")
    from tickertape.weights.ledger import Ledger
    from tickertape.weights.peers.server import PeerServer
    from tickertape.weights.space import human

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    token, ledger = settings.peer_token, Ledger()
    try:
        server = PeerServer(
            store_at(settings.store),
            settings.host,
            settings.peer_port or 0,
            token=None if token is None else token.get_secret_value(),
            max_uploads=settings.peer_uploads,
            max_mbps=settings.peer_upload_mbps,
            ledger=ledger,
        )
    except StartupError as error:
        stop_with(error)
    try:
        print(json.dumps({"peer_port": server.port, "pid": os.getpid()}), flush=True)
        stopping.wait()
    finally:
        server.close()
    counts = ledger.counts()
    click.echo(f"{human(counts.num_uploaded_bytes)} in {plural(counts.num_peer_uploads, 'upload')}", err=True)
    sys.stdout.flush()
