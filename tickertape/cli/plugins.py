"""`tickertape plugins`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from tickertape.cli.options import GroupedCommand, given, refuse, settings_options
from tickertape.core.backend import ModelSpec
from tickertape.core.errors import TickertapeError
from tickertape.pieces import plugin_settings
from tickertape.plugins.listing import ListedBackend, PluginList, list_plugins
from tickertape.plugins.manager import Plugins
from tickertape.settings import Settings, SettingsError, load_settings

__all__ = ["load_plugins", "model_spec", "plugin_options", "plugins"]

plugin_options = settings_options(
    Settings, only=("plugins_dir", "plugins_allow", "plugins_block", "strict_plugins", "config")
)


@click.command(cls=GroupedCommand)
@click.argument("model", required=False, metavar="[MODEL]")
@plugin_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def plugins(model: str | None, as_json: bool, **values: Any) -> None:
    """List the installed plugins and what became of them.

    With MODEL, a model directory, each backend says whether it serves that.
    """
    listed = list_plugins(load_plugins(values), None if model is None else model_spec(model))
    if as_json:
        click.echo(msgspec.json.encode(listed))
    else:
        _show(listed)
    sys.stdout.flush()


def load_plugins(values: dict[str, Any]) -> Plugins:
    """The plugins that the command's options name. Ends the process with one line when they cannot be loaded."""
    try:
        return Plugins.load(**plugin_settings(load_settings(Settings, given(values))))
    except SettingsError as error:
        refuse(error)
    except TickertapeError as error:
        stop(error.message)


def model_spec(directory: str) -> ModelSpec:
    """What lies in a model directory. Ends the process with one line when that is no model."""
    from tickertape.weights.spec import read_spec

    path = Path(directory)
    try:
        return read_spec(path, path.absolute().name)
    except TickertapeError as error:
        stop(error.message)


def stop(message: str) -> NoReturn:
    click.echo(f"tickertape: {message}", err=True)
    raise SystemExit(1)


def _show(listed: PluginList) -> None:
    rows: list[tuple[str, ...]] = [("plugin", "state", "api", "hooks", "from")]
    notes: list[str] = [""]
    for plugin in listed.data:
        origin = f"{plugin.distribution} {plugin.version}".strip()
        rows.append((plugin.name, plugin.state, plugin.api or "-", ", ".join(plugin.hooks) or "-", origin))
        notes.append(f"    {plugin.stage}: {plugin.error}" if plugin.error else "")
    _table(rows, notes)
    click.echo()
    rows = [("backend", "kind", "dtypes", "devices", "lacks", "")]
    rows += [
        (
            backend.name,
            backend.kind,
            ", ".join(backend.capabilities.dtypes),
            ", ".join(backend.capabilities.devices),
            ", ".join(backend.capabilities.lacking()) or "-",
            _verdict(backend),
        )
        for backend in listed.backends
    ]
    _table(rows, [""] * len(rows))


def _verdict(backend: ListedBackend) -> str:
    if backend.supports is msgspec.UNSET:
        return ""
    return "serves the model" if backend.supports else f"no: {backend.reason}"


def _table(rows: Sequence[tuple[str, ...]], notes: Iterable[str]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row, note in zip(rows, notes, strict=True):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if note:
            click.echo(note)
