"""`tickertape plugins`."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from tickertape.cli.options import GroupedCommand, given, refuse, settings_options
from tickertape.core.errors import TickertapeError
from tickertape.pieces import plugin_settings
from tickertape.plugins.manager import Plugins
from tickertape.settings import Settings, SettingsError, load_settings

__all__ = ["plugins"]


@click.command(cls=GroupedCommand)
@settings_options(Settings, only=("plugins_dir", "plugins_allow", "plugins_block", "strict_plugins", "config"))
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
def plugins(as_json: bool, **values: Any) -> None:
    """List the installed plugins and what became of them."""
    try:
        settings = load_settings(Settings, given(values))
        loaded = Plugins.load(**plugin_settings(settings))
    except SettingsError as error:
        refuse(error)
    except TickertapeError as error:
        click.echo(f"tickertape: {error.message}", err=True)
        raise SystemExit(1) from error
    if as_json:
        click.echo(msgspec.json.encode(loaded.records))
        return
    rows = [("plugin", "state", "hooks", "from")]
    rows += [(r.name, r.state, ", ".join(r.hooks), f"{r.distribution} {r.version}".strip()) for r in loaded.records]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row, record in zip(rows, [None, *loaded.records], strict=True):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if record is not None and record.error:
            click.echo(f"    {record.stage}: {record.error}")
    sys.stdout.flush()
