"""`tickertape weights list` and `du`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from tickertape.cli.options import GroupedCommand
from tickertape.cli.weights_store import as_json, open_store, plural, show_json, size, store_options
from tickertape.weights.space import free_bytes, human
from tickertape.weights.usage import Kept, Model, Usage, survey

__all__ = ["du", "list_models"]

_PLURALS = {"partial": "partial downloads", "object": "files of fetches that did not end", "tmp": "workspaces"}


@click.command("list", cls=GroupedCommand)
@store_options
@as_json
def list_models(as_json: bool, **values: Any) -> None:
    """List the models in the store, the last used first.

    Files and size are those of all that a model has there, conversions included; what two models share counts for both.
    Of a directory of your own only what was made from it is in the store.
    """
    store = open_store(values)
    models = survey(store).models()
    if as_json:
        show_json([_model_fields(model) for model in models])
        return
    for model in models:
        click.echo(model.uri)
        state = [word for word, is_so in (("in use", model.in_use), ("pinned", model.pinned)) if is_so]
        columns = (size(model.size_bytes), plural(model.num_files, "file").rjust(9), _ago(model.last_used).ljust(16))
        rest = [*state, *([f"revision {model.revision[:12]}"] if model.revision else [])]
        click.echo(f"{'  '.join(columns)}  {', '.join(rest)}".rstrip())
    if not models:
        click.echo(f"no models in {store.root}", err=True)


@click.command(cls=GroupedCommand)
@store_options
@as_json
def du(as_json: bool, **values: Any) -> None:
    """Show what takes how much space in the store.

    Of each snapshot, the bytes that would be free without it (own) and those that others have too (shared).
    """
    store = open_store(values)
    usage = survey(store)
    free = free_bytes(store.root)
    sharing = Counter(digest for kept in usage.snapshots for digest in kept.digests)
    if as_json:
        show_json(_usage_fields(usage, sharing, free))
        return
    click.echo("       own      shared  snapshot      made by")
    for model in usage.models():
        click.echo(model.uri + (f" at {model.revision[:12]}" if model.revision else ""))
        for kept in sorted(model.snapshots, key=lambda kept: kept.id != model.key):
            own, shared = _split(usage, kept, sharing)
            several = "" if len(kept.roots) == 1 else f", for {len(kept.roots)} models"
            click.echo(f"{size(own)}  {size(shared)}  {kept.id[:12]}  {kept.kind or 'nobody, incomplete'}{several}")
    for kind, words in _PLURALS.items():
        left = [leftover for leftover in usage.leftovers if leftover.kind == kind]
        if left:
            busy = sum(leftover.busy for leftover in left)
            note = f"  {len(left)}" + (f", {busy} in use" if busy else "")
            click.echo(f"{words}\n{size(sum(leftover.size_bytes for leftover in left))}{note}")
    click.echo(f"{human(usage.size_bytes)} in all, each file counted once; {human(free)} free on the disk")


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length_s:
            return f"{plural(int(seconds // length_s), unit)} ago"
    return "just now"


def _split(usage: Usage, kept: Kept, sharing: Counter[str]) -> tuple[int, int]:
    own = usage.bytes_of(digest for digest in kept.digests if sharing[digest] == 1)
    return own, usage.bytes_of(kept.digests) - own


def _model_fields(model: Model) -> dict[str, Any]:
    return {
        "model": model.uri,
        "revision": model.revision,
        "key": model.key,
        "size_bytes": model.size_bytes,
        "num_files": model.num_files,
        "last_used": model.last_used,
        "in_use": model.in_use,
        "pinned": model.pinned,
    }


def _usage_fields(usage: Usage, sharing: Counter[str], free: int) -> dict[str, Any]:
    snapshots = []
    for kept in usage.snapshots:
        own, shared = _split(usage, kept, sharing)
        fields = {"id": kept.id, "kind": kept.kind, "models": sorted(kept.roots), "own_bytes": own}
        snapshots.append(fields | {"shared_bytes": shared, "last_used": kept.last_used, "in_use": kept.in_use})
    leftovers = [
        {"kind": left.kind, "name": left.path.name, "size_bytes": left.size_bytes, "in_use": left.busy}
        for left in usage.leftovers
    ]
    return {"snapshots": snapshots, "leftovers": leftovers, "size_bytes": usage.size_bytes, "free_bytes": free}
