"""Which snapshots belong to which model: a recipe names the digests of what it was made from.

A snapshot that a URI gave is a root. One that was derived belongs to the roots that have *all* of its inputs; so two
models that share a tokenizer share what was made of that, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from tickertape.core.sources import FileEntry
from tickertape.weights.store import Recipe
from tickertape.weights.uris import public

__all__ = ["Lineage", "Origin", "roots_of"]

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_IDENTITY: Final = re.compile(r"(?P<path>/.+):\d+:\d+:\d+:\d+")  # of a file of the operator's own, see overlay.py
_MAX_STEPS: Final = 8  # fetch -> gguf -> tokenizer or cast -> overlay are four

Snapshots = Mapping[str, tuple[tuple[FileEntry, ...], tuple[Recipe, ...]]]


class Origin(Struct, frozen=True):
    """Where a model came from. `uri` is as it may be shown: without a password, and without a query, which may be a
    signature."""

    uri: str
    revision: str


class Lineage(Struct, frozen=True):
    """`roots` maps each snapshot to the keys of its models, `origins` these to where they came from."""

    roots: Mapping[str, frozenset[str]]
    origins: Mapping[str, Origin]


def roots_of(snapshots: Snapshots) -> Lineage:
    """`snapshots` are files and recipes by id. Every snapshot has at least one root; its own id where nothing is
    known about where it came from."""
    origins: dict[str, Origin] = {}
    roots: dict[str, frozenset[str]] = {}
    owners: dict[str, frozenset[str]] = {}  # digest -> keys of the models that have it
    for id, (files, recipes) in snapshots.items():
        for recipe in recipes:
            if (uri := recipe.inputs.get("uri")) is not None:
                origins[id] = Origin(public(uri), recipe.inputs.get("revision", ""))
                roots[id] = frozenset({id})
                _own(owners, files, roots[id])
    derived = [id for id in snapshots if id not in roots]
    for _ in range(_MAX_STEPS):
        before = dict(roots)
        for id in derived:
            files, recipes = snapshots[id]
            found = [keys for recipe in recipes if (keys := _common(recipe, owners, origins))]
            if found:
                roots[id] = frozenset().union(*found)
                _own(owners, files, roots[id])
        if roots == before:
            break
    for id, (_, recipes) in snapshots.items():
        if id not in roots:
            origins[id] = Origin(f"({recipes[0].kind if recipes else 'incomplete'})", "")
            roots[id] = frozenset({id})
    return Lineage(roots, origins)


def _common(recipe: Recipe, owners: Mapping[str, frozenset[str]], origins: dict[str, Origin]) -> frozenset[str]:
    common: frozenset[str] | None = None
    for name, value in recipe.inputs.items():
        if _DIGEST.fullmatch(value):
            keys = owners.get(value)
        elif identity := _IDENTITY.fullmatch(value):
            keys = _directory(Path(identity["path"]).parent, origins)
        elif name == "path" and recipe.kind == "gguf":
            keys = _directory(Path(value), origins)
        else:
            continue
        if keys:
            common = keys if common is None else common & keys
    return common or frozenset()


def _directory(path: Path, origins: dict[str, Origin]) -> frozenset[str]:
    key = hashlib.sha256(str(path).encode()).hexdigest()
    origins[key] = Origin(str(path), "")
    return frozenset({key})


def _own(owners: dict[str, frozenset[str]], files: Iterable[FileEntry], keys: frozenset[str]) -> None:
    for entry in files:
        if entry.sha256 is not None:
            owners[entry.sha256] = owners.get(entry.sha256, frozenset()) | keys
