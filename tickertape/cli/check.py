"""`tickertape check`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tickertape.cli.options import GroupedCommand
from tickertape.cli.plugins import load_plugins, model_spec, plugin_options, stop
from tickertape.core.errors import TickertapeError

__all__ = ["check"]


@click.command(cls=GroupedCommand)
@click.argument("name")
@click.option("--model", metavar="DIR", help="Model directory to compute. [default: a tiny random Llama]")
@plugin_options
def check(name: str, model: str | None, **values: Any) -> None:
    """Run the conformance kit on backend NAME.

    Its answers are compared with those of the transformers library where that can compute the model, else with its
    own, computed one sequence at a time. Needs pytest. The exit status is pytest's.
    """
    plugins = load_plugins(values)
    try:
        from tickertape.testing.check import check_backend
    except ModuleNotFoundError as error:
        stop(f"the kit needs {error.name}: {sys.executable} -m pip install {error.name}")
    try:
        backend = plugins.backend(name)
        status = check_backend(backend, None if model is None else model_spec(model))
    except TickertapeError as error:
        if error.code == "ModelNeeded":
            raise click.UsageError(error.message) from None
        stop(error.message)
    raise SystemExit(status)
