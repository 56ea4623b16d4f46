"""`tickertape weights`: what is in the store, and what to do about it."""

from __future__ import annotations

import click

from tickertape.cli.group import LazyGroup

__all__ = ["weights"]

_COMMANDS = {
    "list": ("tickertape.cli.weights_show:list_models", "List the models in the store."),
    "du": ("tickertape.cli.weights_show:du", "Show what takes how much space."),
    "pull": ("tickertape.cli.weights_pull:pull", "Bring models into the store, ready to be served."),
    "verify": ("tickertape.cli.weights_verify:verify", "Hash files again and compare."),
    "pin": ("tickertape.cli.weights_keep:pin", "Keep models, however long nobody uses them."),
    "unpin": ("tickertape.cli.weights_keep:unpin", "Let pinned models go when space is needed."),
    "prune": ("tickertape.cli.weights_prune:prune", "Remove what is not used."),
    "serve": ("tickertape.cli.weights_serve:serve", "Serve the store to peers, and nothing else."),
    "manifest": ("tickertape.cli.weights_manifest:manifest", "Write the manifest.json of a model directory."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    epilog="Exit status: 0 done; 1 it could not be done, or something is corrupt; 2 wrong usage.",
)
def weights() -> None:
    """Look after the weights store.

    MODEL is what `serve` and `pull` take: a path or a URI. A model in the store may also be named as it is served, or
    by the beginning of the key that `list --json` shows.
    """
