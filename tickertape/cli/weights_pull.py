"""`tickertape weights pull`."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from tickertape.cli.options import GroupedCommand, settings_options
from tickertape.cli.weights_store import as_json, settings_of, show_json, stop_with, store_at
from tickertape.core.errors import StartupError, TickertapeError
from tickertape.logs import configure_logs
from tickertape.pieces import fetch_message
from tickertape.progress import ProgressBars, ProgressLog
from tickertape.settings import Settings
from tickertape.weights.space import human

__all__ = ["pull"]

_SOURCES = {"origin": "from origins", "peer": "from peers", "derived": "made here"}
_OPTIONS = tuple(
    name
    for name, field in Settings.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["group"] in ("Weights", "Plugins")
)


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@settings_options(
    Settings,
    only=("store", "dtype", "quantization", *_OPTIONS, "log_level", "config"),
    leave=("auth_plugins", "route_plugins"),
)
@as_json
def pull(as_json: bool, **values: Any) -> None:
    """Bring models into the store, converted as a server with the same options wants them.

    A server that starts afterwards finds them there and asks nobody. Whatever is interrupted goes on where it was.

    Exit status: 1 when one could not be brought in; those before it are there.
    """
    settings = settings_of(values)
    fetch = fetch_message(settings)
    configure_logs(settings.log_level, process="weights")
    # Heavy, and of no use to who asks for help.
    from tickertape.fetch_tools import FetchTools
    from tickertape.fetcher import read_by_plugin
    from tickertape.plugins.manager import Plugins
    from tickertape.weights.ledger import Ledger
    from tickertape.weights.materialize import materialize
    from tickertape.weights.spec import served_name

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: slots are given back
    ledger = Ledger()
    view = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLog(time.monotonic)
    store = store_at(Path(fetch.store), ledger, partial(view.show, "store"))
    brought: list[dict[str, Any]] = []
    try:
        plugins = Plugins.load(**fetch.plugins, process="fetcher")
        try:
            with FetchTools(fetch.options, store, ledger) as tools:
                for name, model in fetch.models:
                    shown = name or served_name(model or "")
                    spec = materialize(
                        model,
                        store=store,
                        sources=plugins.sources,
                        report=partial(view.show, shown),
                        name=name,
                        dtype=fetch.compute.dtype,
                        quantization=fetch.compute.quantization,
                        reads_itself=lambda directory: read_by_plugin(directory, plugins),
                        fetching=tools.fetching,
                    )
                    brought.append({"model": model, "name": spec.name, "path": spec.path, "bytes": spec.weight_bytes})
        finally:
            view.close()
            plugins.shutdown()
    except KeyboardInterrupt:
        stop_with("interrupted; the next pull goes on from here")
    except TickertapeError as error:
        stop_with(error.message)
    except OSError as error:
        stop_with(StartupError(f"cannot write the store: {error.strerror or error}", code="StoreFailed"))
    num_bytes = ledger.counts().num_bytes
    if as_json:
        show_json({"models": brought, "num_bytes": num_bytes})
        return
    for item in brought:
        click.echo(f"{item['name']}: {human(item['bytes'])} of weights in {item['path']}")
    came = [f"{human(count)} {_SOURCES[source]}" for source, count in sorted(num_bytes.items()) if count]
    click.echo(", ".join(came) if came else "nothing had to be fetched or made")
