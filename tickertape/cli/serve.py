"""`tickertape serve`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tickertape.boot import BindError, Boot
from tickertape.cli.options import GroupedCommand, environment_note, given, refuse, settings_options
from tickertape.failures import note_termination
from tickertape.settings import Settings, SettingsError, load_settings
from tickertape.start_turn import StartTurn

__all__ = ["serve"]


@click.command(cls=GroupedCommand, epilog=environment_note())
@click.argument("models", nargs=-1, metavar="[MODEL | NAME=MODEL]...")
@settings_options(Settings, leave=("models",))
def serve(**values: Any) -> None:
    """Serve models over HTTP, with the OpenAI routes under /v1, and over gRPC.

    MODEL is a directory in Hugging Face layout or a URI; without one a small demo model is fetched and served. The
    first line on standard output is one JSON object with "port", "grpc_port" and "pid", as soon as the ports are
    bound; progress, logs and, once it is ready, commands to try go to standard error.

    Stops on SIGTERM or Ctrl-C: running streams get --grace-s seconds to finish. A second signal ends it at once.

    Exit status: 0 when it was asked to stop, 1 when it could not start or go on (the reason is on standard error, and
    on /readyz for a moment), 2 for wrong settings, 128 + N after a second signal N.
    """
    try:
        settings = load_settings(Settings, given(values))
    except SettingsError as error:
        refuse(error)
    try:
        boot = Boot(
            settings.host,
            settings.port,
            num_workers=0 if settings.in_process else max(1, len(settings.models)),
            tls=settings.tls_cert is not None,
            grpc_port=settings.chosen_grpc_port,
            turn=StartTurn(settings.store / "locks", os.cpu_count() or 1),
        )
    except BindError as error:
        click.echo(f"tickertape: {error}", err=True)
        note_termination(settings.chosen_termination_log, f"BindFailed: {error}")
        raise SystemExit(1) from error
    with boot:
        # The heavy imports, while boot's thread answers on the port.
        from tickertape.server import run

        status = run(settings, boot)
    # Not sys.exit: that would wait for threads, and one may be in the middle of a long template.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
