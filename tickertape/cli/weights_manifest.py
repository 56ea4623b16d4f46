"""`tickertape weights manifest`."""

from __future__ import annotations

from pathlib import Path

import click

from tickertape.cli.options import GroupedCommand
from tickertape.cli.weights_store import Option, plural, stop_with
from tickertape.core.errors import StartupError
from tickertape.plugins.sources.model_files import choose_files
from tickertape.weights.files import write_atomically
from tickertape.weights.manifest import MANIFEST, make_manifest

__all__ = ["manifest"]


@click.command(cls=GroupedCommand)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--stdout", cls=Option, group="Output", is_flag=True, help="Print it, and write nothing.")
def manifest(directory: Path, stdout: bool) -> None:
    """Write manifest.json into a model directory that is to be published.

    It holds the size and sha256 of every file, and digests of the chunks of large ones; of pickles and hidden files
    nothing. A server that fetches the model from a bucket or over HTTPS then knows what must come, checks it, and can
    have it from its peers chunk by chunk.
    """
    try:
        if directory.is_dir():
            _check_model(directory)
        content = make_manifest(directory)
    except StartupError as error:
        stop_with(error)
    if stdout:
        click.echo(content, nl=False)
        return
    try:
        write_atomically(directory / MANIFEST, content)
    except OSError as error:
        stop_with(f"{directory / MANIFEST}: {(error.strerror or str(error)).lower()}")
    num_files = content.count(b'"path"')
    click.echo(f"{directory / MANIFEST}: {plural(num_files, 'file')}")


def _check_model(directory: Path) -> None:
    """Raises StartupError (NotAModel, PickleOnly, UnsupportedFormat) for what no server would take from there."""
    names = {path.name for path in directory.iterdir() if path.is_file()}
    try:
        chosen = choose_files(names, str(directory))
    except StartupError as error:
        if error.code != "AmbiguousModel":  # each of them is named for itself
            raise
        return
    if "config.json" not in chosen and not any(name.endswith(".gguf") for name in chosen):
        raise StartupError(f"{directory}: no config.json, so not a model directory", code="NotAModel")
