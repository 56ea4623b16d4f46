"""`tickertape weights prune`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from tickertape.cli.options import GroupedCommand
from tickertape.cli.weights_store import Option, as_json, open_store, show_json, size, stop_with, store_options
from tickertape.core.errors import StartupError
from tickertape.weights.gc import Collector, Victim, evictable, garbage
from tickertape.weights.space import human
from tickertape.weights.usage import Kept, Usage, survey

__all__ = ["prune"]

Choose = Callable[[Usage], Iterable[Victim]]

_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WORDS = {
    "snapshot": "",
    "partial": "partial download ",
    "object": "file of a fetch that did not end ",
    "tmp": "workspace ",
}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            self.fail(f"{value!r} is no size, as 50GiB", param, ctx)


class _Age(click.ParamType[float]):
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no age, as 30d, 12h or 90m", param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


_option = partial(click.option, cls=Option, group="What goes")


@click.command(cls=GroupedCommand)
@_option("--to", "to_bytes", type=_Size(), metavar="SIZE", help="Least recently used first, down to this size.")
@_option("--unused-for", "unused_s", type=_Age(), metavar="AGE", help="What was not used for 30d, 12h, ...")
@_option("--partials", is_flag=True, help="What is left of fetches that were broken off.")
@_option("--dry-run", is_flag=True, help="Only say what would go.")
@_option("--force", is_flag=True, help="Even where others may use the store unseen: nobody does.")
@store_options
@as_json
def prune(
    to_bytes: int | None,
    unused_s: float | None,
    partials: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Remove what is not used from the store.

    What is pinned stays, and so does what a process uses or is working on. Without an option only garbage goes, which
    nobody can have any use for: workspaces of processes that were killed.

    Exit status: 1 when the size of --to was not reached, the rest being in use or pinned.
    """
    if sum((to_bytes is not None, unused_s is not None, partials)) > 1:
        raise click.UsageError("--to, --unused-for and --partials exclude each other")
    store = open_store(values)
    usage = survey(store)
    gone: list[tuple[Victim, int]] = []
    collector = Collector(store, force=force, removed=lambda victim, freed: gone.append((victim, freed)))
    excess = 0 if to_bytes is None else usage.size_bytes - to_bytes
    enough: Callable[[int], bool] = (lambda freed: freed >= excess) if to_bytes is not None else lambda _: False
    choose = _chooser(to_bytes, unused_s, partials)
    if dry_run:
        for victim in (*garbage(usage), *choose(usage)):
            if enough(sum(freed for _, freed in gone)):
                break
            gone.append((victim, victim.size_bytes))
    else:
        try:
            collector.collect(enough, choose)
        except StartupError as error:
            stop_with(f"{error.message}; --force says that nobody does" if error.code == "NotCollectable" else error)
    freed = sum(num_bytes for _, num_bytes in gone)
    if as_json:
        show_json({"removed": [_fields(*item) for item in gone], "freed_bytes": freed, "dry_run": dry_run})
    else:
        for victim, num_bytes in gone:
            click.echo(f"{size(num_bytes)}  {_describe(victim, usage)}")
        left = human(usage.size_bytes - freed)
        click.echo(
            f"{human(freed)} {'would be' if dry_run else 'were'} removed, {left} {'stay' if dry_run else 'are left'}"
        )
    if to_bytes is not None and usage.size_bytes - freed > to_bytes:
        stop_with(f"the store does not get down to {human(to_bytes)}: the rest is in use or pinned")


def _chooser(to_bytes: int | None, unused_s: float | None, partials: bool) -> Choose:
    if to_bytes is not None:
        return evictable
    if partials:
        return lambda usage: [victim for victim in evictable(usage) if victim.kind != "snapshot"]
    if unused_s is None:
        return lambda _: ()
    before = time.time() - unused_s
    return lambda usage: [victim for victim in evictable(usage) if victim.last_used < before]


def _describe(victim: Victim, usage: Usage) -> str:
    if not isinstance(victim.what, Kept):
        return f"{_WORDS[victim.kind]}{victim.name[:12]}"
    uris = sorted(usage.lineage.origins[root].uri for root in victim.what.roots)
    return f"{victim.what.kind or 'incomplete'} {victim.name[:12]}  {', '.join(uris)}"


def _fields(victim: Victim, freed: int) -> dict[str, Any]:
    return {"kind": victim.kind, "name": victim.name, "freed_bytes": freed, "last_used": victim.last_used}
