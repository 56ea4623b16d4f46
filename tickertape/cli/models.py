"""`tickertape models`."""

from __future__ import annotations

from typing import Any

import click

from tickertape.cli.client import ClientSettings, connect, load_client_settings, served_models
from tickertape.cli.options import GroupedCommand, given, settings_options

__all__ = ["models"]


@click.command(cls=GroupedCommand)
@settings_options(ClientSettings)
def models(**values: Any) -> None:
    """List the models of a server, one a line."""
    with connect(load_client_settings(given(values))) as client:
        for name in served_models(client):
            click.echo(name)
