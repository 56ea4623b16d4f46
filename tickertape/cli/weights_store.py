"""What the commands about the weights store share."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from tickertape.cli.options import given, refuse, settings_options
from tickertape.core.errors import StartupError
from tickertape.settings import Settings, SettingsError, load_settings
from tickertape.weights.space import human
from tickertape.weights.spec import served_name
from tickertape.weights.store import Store
from tickertape.weights.uris import public
from tickertape.weights.usage import Model, Usage

__all__ = [
    "Option",
    "as_json",
    "chosen",
    "open_store",
    "plural",
    "settings_of",
    "show_json",
    "size",
    "stop_with",
    "store_at",
    "store_options",
]

_KEY_PREFIX = re.compile(r"[0-9a-f]{6,64}")


class Option(click.Option):
    """One that stands under a heading, as those made from settings do."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


store_options = settings_options(Settings, only=("store", "config"))
as_json = click.option("--json", "as_json", cls=Option, group="Output", is_flag=True, help="JSON instead of text.")


def settings_of(values: dict[str, Any]) -> Settings:
    """Ends the process when they are wrong."""
    try:
        return load_settings(Settings, given(values))
    except SettingsError as error:
        refuse(error)


def open_store(values: dict[str, Any]) -> Store:
    return store_at(settings_of(values).store)


def store_at(path: Path, *more: Any) -> Store:
    """Takes what `Store` does. Ends the process when something else is there."""
    if path.exists() and not path.is_dir():
        stop_with(f"not a directory: {path}")
    return Store(path, *more)


def chosen(usage: Usage, names: Sequence[str]) -> tuple[Model, ...]:
    """The models of the store that are meant. Ends the process when one is not there, or could be several."""
    found: dict[str, Model] = {}
    for name in names:
        matching = [model for model in usage.models() if _is_meant(model, name)]
        if not matching:
            stop_with(f"{public(name)} is not in the store")
        if len({model.uri for model in matching}) > 1:
            stop_with(f"{public(name)} may be {' or '.join(sorted(model.uri for model in matching))}")
        found |= {model.key: model for model in matching}
    return tuple(found.values())


def _is_meant(model: Model, name: str) -> bool:
    recipes = [recipe for kept in model.snapshots for recipe in kept.recipes]
    uris = {model.uri, *(recipe.inputs.get("uri", "") for recipe in recipes)}
    uris |= {served_name(uri) for uri in uris}
    spelled = {name, f"hf://{name}", os.path.abspath(name)}
    if public(name) != name:  # the store knows a URI with a secret in it by its digest
        uris = {recipe.inputs.get("uri_sha256", "") for recipe in recipes}
        spelled = {hashlib.sha256(name.encode()).hexdigest()}
    return not uris.isdisjoint(spelled) or bool(_KEY_PREFIX.fullmatch(name) and model.key.startswith(name))


def show_json(content: Any) -> None:
    click.echo(json.dumps(content))


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def stop_with(error: StartupError | str) -> NoReturn:
    click.echo(f"tickertape: {error.message if isinstance(error, StartupError) else error}", err=True)
    raise SystemExit(1)


def size(num_bytes: int) -> str:
    """Bytes in a column of their own."""
    return human(num_bytes).rjust(10)
