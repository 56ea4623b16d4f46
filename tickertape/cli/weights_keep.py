"""`tickertape weights pin` and `unpin`."""

from __future__ import annotations

from typing import Any

import click

from tickertape.cli.options import GroupedCommand
from tickertape.cli.weights_store import chosen, open_store, stop_with, store_options
from tickertape.weights.files import unwritable
from tickertape.weights.pins import Pins
from tickertape.weights.usage import survey

__all__ = ["pin", "unpin"]


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@store_options
def pin(models: tuple[str, ...], **values: Any) -> None:
    """Keep models in the store, however long nobody uses them.

    What was made from a model is kept with it. A pin is for the revision that is there: another one has to be pinned
    anew.
    """
    store = open_store(values)
    pins = Pins(store.root)
    with store.holds.window(create=True):  # a collector asks for pins behind the same gate
        found = chosen(survey(store), models)
        try:
            for model in found:
                pins.add(model.key, model.uri, model.revision)
        except OSError as error:
            stop_with(unwritable(error, "pinning a model"))
    for model in found:
        click.echo(f"pinned {model.uri}{f' at {model.revision}' if model.revision else ''}")


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@store_options
def unpin(models: tuple[str, ...], **values: Any) -> None:
    """Let pinned models go when space is needed."""
    store = open_store(values)
    pins = Pins(store.root)
    for model in chosen(survey(store), models):
        try:
            was_there = pins.remove(model.key)
        except OSError as error:
            stop_with(unwritable(error, "unpinning a model"))
        click.echo(f"{'unpinned' if was_there else 'not pinned:'} {model.uri}")
