"""`tickertape weights verify`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from tickertape.cli.options import GroupedCommand
from tickertape.cli.weights_store import (
    Option,
    as_json,
    chosen,
    open_store,
    plural,
    show_json,
    stop_with,
    store_options,
)
from tickertape.progress import ProgressBars
from tickertape.weights.files import unwritable
from tickertape.weights.space import human
from tickertape.weights.usage import Usage, survey
from tickertape.weights.verify import Fault, discard, faults

__all__ = ["verify"]


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--all", "everything", cls=Option, group="Check", is_flag=True, help="The whole store; the default without a MODEL."
)
@click.option(
    "--repair",
    cls=Option,
    group="Check",
    is_flag=True,
    help="Remove what is corrupt; the next start or pull brings it again.",
)
@store_options
@as_json
def verify(models: tuple[str, ...], everything: bool, repair: bool, as_json: bool, **values: Any) -> None:
    """Hash the files of models again and compare with the digests they were stored under.

    Servers trust a file that looks as it did when it was verified; this reads every byte. Nothing is written, unless
    with --repair.

    Exit status: 1 when something is corrupt or missing and was not repaired.
    """
    if models and everything:
        raise click.UsageError("--all and MODEL exclude each other")
    store = open_store(values)
    usage = survey(store)
    snapshots = [kept for model in chosen(usage, models) for kept in model.snapshots] if models else usage.snapshots
    digests = {digest for kept in snapshots for digest in kept.digests}
    started = time.monotonic()
    view = ProgressBars(sys.stderr) if sys.stderr.isatty() else None
    try:
        found = list(faults(store, digests, (lambda step: view.show("store", step)) if view else lambda _: None))
    finally:
        if view is not None:
            view.close()
    if repair:
        for fault in found:
            try:
                discard(store, fault.sha256)
            except OSError as error:
                stop_with(unwritable(error, "removing a corrupt file"))
    num_bytes = usage.bytes_of(digests)
    if as_json:
        faulty = [{"sha256": f.sha256, "problem": f.kind, "files": _files(usage, f)} for f in found]
        show_json({"num_files": len(digests), "num_bytes": num_bytes, "faults": faulty, "repaired": repair})
    else:
        for fault in found:
            click.echo(f"{fault.kind}: {fault.sha256[:12]}  {', '.join(_files(usage, fault))}")
        seconds = time.monotonic() - started
        rate = f", {human(num_bytes / seconds)}/s" if num_bytes and seconds > 0 else ""
        click.echo(f"{plural(len(digests), 'file')}, {human(num_bytes)} read{rate}; {_verdict(len(found), repair)}")
    if found and not repair:
        raise SystemExit(1)


def _verdict(num_faults: int, repair: bool) -> str:
    if not num_faults:
        return "all are what they should be"
    return f"{num_faults} removed, pull to get them again" if repair else f"{num_faults} are not (see --repair)"


def _files(usage: Usage, fault: Fault) -> list[str]:
    """The files of models that the object is, as "model: file"."""
    found = {
        f"{usage.lineage.origins[root].uri}: {entry.path}"
        for kept in usage.snapshots
        for entry in kept.files
        if entry.sha256 == fault.sha256
        for root in kept.roots
    }
    return sorted(found)
