"""What lies in a store, what it takes, and who uses it. Reads only: a read-only store can be looked at too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from tickertape.core.sources import FileEntry
from tickertape.weights.holds import is_held
from tickertape.weights.lineage import Lineage, roots_of
from tickertape.weights.objects import is_sha256
from tickertape.weights.pins import Pins
from tickertape.weights.store import Derived, Recipe, Store

__all__ = [
    "Kept",
    "Leftover",
    "Model",
    "Usage",
    "derived_records",
    "last_used",
    "locks_of",
    "survey",
    "weight_paths",
]

_WEIGHTS: Final = (".safetensors", ".gguf")
_SECTOR_BYTES: Final = 512  # of st_blocks, whatever the file system's own


class Kept(Struct, frozen=True, kw_only=True):
    """A snapshot. `roots` are the keys of the models it belongs to; `last_used` is Unix time. No recipe: whoever made
    it did not get to the end, and nobody finds it."""

    id: str
    files: tuple[FileEntry, ...]
    recipes: tuple[Recipe, ...]
    roots: frozenset[str]
    last_used: float
    in_use: bool
    pinned: bool

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(entry.sha256 for entry in self.files if entry.sha256 is not None)

    @property
    def kind(self) -> str:
        """fetch, gguf, tokenizer, cast, overlay, ...; "" without a recipe."""
        return self.recipes[0].kind if self.recipes else ""


class Leftover(Struct, frozen=True):
    """Of work that goes on or was broken off: a partial download, an object that no snapshot names (yet), a workspace.
    `busy`: somebody is at it."""

    kind: Literal["partial", "object", "tmp"]
    path: Path
    size_bytes: int
    last_used: float
    busy: bool


class Model(Struct, frozen=True, kw_only=True):
    """What an operator calls a model: what was fetched for one revision of one URI, and all that was made from it. Of a
    directory of the operator's own only the latter, and `revision` is "". `num_files` and `size_bytes` are of all that,
    each file counted once."""

    key: str
    uri: str
    revision: str
    snapshots: tuple[Kept, ...]
    num_files: int
    size_bytes: int
    last_used: float
    in_use: bool
    pinned: bool


class Usage(Struct, frozen=True):
    """The store at one moment. `objects` maps sha256 to bytes, of those that snapshots name."""

    snapshots: tuple[Kept, ...]
    objects: Mapping[str, int]
    leftovers: tuple[Leftover, ...]
    lineage: Lineage

    @property
    def size_bytes(self) -> int:
        """Links and notes are not worth counting."""
        return sum(self.objects.values()) + sum(leftover.size_bytes for leftover in self.leftovers)

    def bytes_of(self, digests: Iterable[str]) -> int:
        return sum(self.objects.get(digest, 0) for digest in set(digests))

    def models(self) -> tuple[Model, ...]:
        """The last used first."""
        by_key: dict[str, list[Kept]] = {}
        for kept in self.snapshots:
            for key in kept.roots:
                by_key.setdefault(key, []).append(kept)
        found = [self._model(key, snapshots) for key, snapshots in by_key.items()]
        return tuple(sorted(found, key=lambda model: (-model.last_used, model.uri, model.revision)))

    def _model(self, key: str, snapshots: list[Kept]) -> Model:
        origin = self.lineage.origins[key]
        digests = frozenset().union(*(kept.digests for kept in snapshots))
        return Model(
            key=key,
            uri=origin.uri,
            revision=origin.revision,
            snapshots=tuple(snapshots),
            num_files=len(digests),
            size_bytes=self.bytes_of(digests),
            last_used=max(kept.last_used for kept in snapshots),
            in_use=any(kept.in_use for kept in snapshots),
            pinned=any(kept.pinned for kept in snapshots),
        )


def survey(store: Store) -> Usage:
    """Looks at everything. What comes and goes meanwhile may be in it or not."""
    listings = dict(_listings(store.root))
    recipes: dict[str, list[Recipe]] = {}
    for _, derived in derived_records(store.root):
        recipes.setdefault(derived.snapshot, []).append(derived.recipe)
    lineage = roots_of({id: (files, tuple(recipes.get(id, ()))) for id, files in listings.items()})
    pins = Pins(store.root).keys()
    snapshots = tuple(
        Kept(
            id=id,
            files=files,
            recipes=tuple(recipes.get(id, ())),
            roots=lineage.roots[id],
            last_used=last_used(store.root, id),
            in_use=_in_use(store.root, id, files),
            pinned=not pins.isdisjoint(lineage.roots[id]),
        )
        for id, files in sorted(listings.items())
    )
    named = frozenset().union(*(kept.digests for kept in snapshots))
    objects: dict[str, int] = {}
    unnamed: list[Leftover] = []
    for path, stat in _objects(store.root):
        if path.name in named:
            objects[path.name] = stat.st_size
        else:
            unnamed.append(Leftover("object", path, stat.st_size, stat.st_mtime, is_held(path)))
    return Usage(snapshots, objects, (*_leftovers(store.root), *unnamed), lineage)


def _listings(root: Path) -> Iterator[tuple[str, tuple[FileEntry, ...]]]:
    folder = root / "snapshots"
    ids = {path.stem for path in folder.glob("[!.]*.json")} | {path.name for path in folder.glob("*") if path.is_dir()}
    for id in ids:
        try:
            files = msgspec.json.decode((folder / f"{id}.json").read_bytes(), type=tuple[FileEntry, ...])
            yield id, files if all(entry.sha256 is None or is_sha256(entry.sha256) for entry in files) else ()
        except FileNotFoundError:
            yield id, ()  # half removed
        except (OSError, msgspec.DecodeError):
            yield id, ()  # nobody finds what cannot be read


def derived_records(root: Path) -> Iterator[tuple[Path, Derived]]:
    """The files in derived/ and what they say; what cannot be read is left out."""
    for path in (root / "derived").glob("[!.]*.json"):
        try:
            yield path, msgspec.json.decode(path.read_bytes(), type=Derived)
        except (OSError, msgspec.DecodeError):
            continue


def last_used(root: Path, id: str) -> float:
    """When a snapshot was last used: Unix time."""
    for path in (root / "used" / id, root / "snapshots" / f"{id}.json", root / "snapshots" / id):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0


def weight_paths(root: Path, id: str, files: Iterable[FileEntry]) -> list[Path]:
    """Where the weights of a snapshot are mapped from: its own directory, be it link or copy. Its other files are read,
    never mapped. A fetch of another model that has them in common holds them too, and must not keep the snapshot,
    perhaps an older revision, from making room for it."""
    ours = (entry.path for entry in files if entry.sha256 is not None)
    return [root / "snapshots" / id / path for path in ours if path.endswith(_WEIGHTS)]


def _in_use(root: Path, id: str, files: Iterable[FileEntry]) -> bool:
    return is_held(root / "used" / id) or any(map(is_held, weight_paths(root, id, files)))


def _objects(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted((root / "objects").glob("??/*")):
        if not is_sha256(path.name) or path.parent.name != path.name[:2]:
            continue  # not ours to remove
        try:
            yield path, path.stat()
        except OSError:
            continue


def _leftovers(root: Path) -> Iterator[Leftover]:
    kinds: tuple[Literal["partial", "tmp"], ...] = ("partial", "tmp")
    for kind in kinds:
        for path in sorted((root / kind).glob("*")):
            size_bytes, last_used = _size(path)
            yield Leftover(kind, path, size_bytes, last_used, any(is_held(file) for file in locks_of(root, path)))


def locks_of(root: Path, leftover: Path) -> tuple[Path, ...]:
    """What is locked by whoever is at work in it: the lock of the recipe that it is named after (taken first), the
    directory or a lock in it, and data that is mapped while it comes."""
    recipe = root / "locks" / leftover.name.partition(".")[0]
    return (recipe, leftover, leftover / "lock", leftover / "data")


def _size(path: Path) -> tuple[int, float]:
    """Bytes on the disk (a download is allocated before it comes), and when something was last written."""
    size_bytes, last_used = 0, 0.0
    for directory, _, files in os.walk(path):
        for file in (directory, *(os.path.join(directory, name) for name in files)):
            try:
                stat = os.lstat(file)
            except OSError:
                continue
            last_used = max(last_used, stat.st_mtime)
            size_bytes += stat.st_blocks * _SECTOR_BYTES if file != directory else 0
    return size_bytes, last_used
