"""The store of a node: objects, snapshots of them, and which snapshot answers which recipe.

objects/<2 hex>/<sha256>   mode 0444, written once, only ever mapped read-only
meta/<sha256>.json         how an object looked when it was verified
snapshots/<id>.json        the files of a snapshot and their digests
snapshots/<id>/<file>      links into objects/; published last
derived/<recipe>.json      recipe -> snapshot id: a fetched revision, a converted GGUF, ...
partial/, tmp/             work in progress, one directory per process and job
locks/<recipe>             one process of the node works on a recipe, the others wait and use what it made
locks/gc, used/, pins/     what must not be removed; see holds.py, pins.py and gc.py
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import msgspec
from msgspec import Struct

from tickertape.core.ports import Progress
from tickertape.core.sources import FileEntry
from tickertape.weights.files import fsync_directory, write_atomically
from tickertape.weights.holds import Holds, claim
from tickertape.weights.ledger import Ledger
from tickertape.weights.lock import FileLock, keeps_others_out
from tickertape.weights.objects import Objects

__all__ = ["Derived", "Recipe", "Snapshot", "Store", "check_relative"]

_MAX_NAME_BYTES: Final = 255  # Linux's NAME_MAX


class Recipe(Struct, frozen=True):
    """What a snapshot was made from, completely: the same recipe always gives the same files."""

    kind: str
    inputs: Mapping[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class Snapshot(Struct, frozen=True):
    """A directory of verified files. `files` have sizes and digests; one without a digest is the operator's own, which
    the recipe identifies."""

    path: Path
    files: tuple[FileEntry, ...]


class Derived(Struct, frozen=True):
    """Which snapshot, by its id, answers a recipe."""

    recipe: Recipe
    snapshot: str


def check_relative(path: str) -> str:
    """`path` if it stays inside its directory and every file system takes it; raises ValueError else."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in path:
        raise ValueError(f"not a path inside a model: {path!r}")
    try:
        longest_bytes = max(len(part.encode()) for part in pure.parts)
    except UnicodeEncodeError:
        raise ValueError(f"not a name that can be written: {path!r}") from None
    if longest_bytes > _MAX_NAME_BYTES:
        raise ValueError(f"a name of {longest_bytes} bytes, over {_MAX_NAME_BYTES}: {path[:40]!r}...")
    return path


class Store:
    """A store rooted at a directory, which need not exist yet and is made on the first write. Any number of processes
    may use one at once. A complete store on a read-only file system is served without a single attempt to write.

    What was found or published is held until `close`, or the end of the process: nobody collects it.

    Writing methods raise OSError; `tickertape.weights.files.unwritable` words it. `ledger` counts the bytes hashed to
    see whether an object is intact, and `report` hears of it: that may take minutes. What it raises passes through.
    """

    def __init__(
        self, root: Path, ledger: Ledger | None = None, report: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self.root = root.absolute()  # at once: the working directory may change under us
        self.holds = Holds(self.root)
        self.objects = Objects(self.root, self.holds, ledger, report)

    def find(self, recipe: Recipe) -> Snapshot | None:
        """The snapshot for `recipe` if it is there, whole, and every object is intact. It is held then."""
        with self.holds.window():
            snapshot = self._listed(recipe)
            if snapshot is None:
                return None
            self.holds.keep_used(snapshot.path.name)
        if self._is_whole(snapshot):
            return snapshot
        self.holds.drop_used(snapshot.path.name)
        return None

    def _listed(self, recipe: Recipe) -> Snapshot | None:
        try:
            derived = msgspec.json.decode(self._derived(recipe).read_bytes(), type=Derived)
            listing = (self.root / "snapshots" / f"{derived.snapshot}.json").read_bytes()
            files = msgspec.json.decode(listing, type=tuple[FileEntry, ...])
        except (OSError, msgspec.DecodeError):
            return None
        return Snapshot(self.root / "snapshots" / derived.snapshot, files) if files else None

    @contextmanager
    def lock(self, recipe: Recipe, waiting: Callable[[float], None] = lambda _: None) -> Iterator[None]:
        """Held by one process of the node at a time. Look again with `find` once inside: whoever held it before may
        have made what is wanted. `waiting` hears the seconds waited."""
        with FileLock(self.root / "locks" / recipe.digest, waiting):
            yield

    @contextmanager
    def workspace(self, recipe: Recipe, kind: Literal["partial", "tmp"] = "tmp") -> Iterator[Path]:
        """An empty directory of one's own on the store's file system, removed afterwards; what killed processes left
        of the same recipe is removed first. Call it under the lock."""
        parent = self.root / kind
        parent.mkdir(parents=True, exist_ok=True)
        for leftover in parent.glob(f"{recipe.digest}.*"):
            _remove_if_abandoned(leftover)
        path = parent / f"{recipe.digest}.{secrets.token_hex(4)}"
        path.mkdir()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)  # says "in use" even where the job's own lock does not work
            yield path
        finally:
            os.close(fd)
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, recipe: Recipe, files: Mapping[str, str], own: Mapping[str, Path] | None = None) -> Snapshot:
        """Makes a snapshot of objects (relative path -> sha256) and has it answer `recipe`. Links are relative, so the
        store may be moved; where symbolic links cannot be made they are hard links, else copies. `own` are files that
        stay outside the store and are linked to where they are."""
        own = own or {}
        with self.holds.window(create=True):
            snapshot = self._publish(recipe, files, own)
        for sha256 in files.values():
            self.objects.release(sha256)  # the snapshot names it now
        return snapshot

    def close(self) -> None:
        """Lets go of what was found and published. May be called twice."""
        self.holds.close()

    def _publish(self, recipe: Recipe, files: Mapping[str, str], own: Mapping[str, Path]) -> Snapshot:
        entries = tuple(
            FileEntry(check_relative(path), self.objects.path(sha256).stat().st_size, sha256)
            for path, sha256 in sorted(files.items())
        ) + tuple(FileEntry(check_relative(path), file.stat().st_size) for path, file in sorted(own.items()))
        listing = msgspec.json.encode(entries)
        # The same listing may stand for other files of the operator's: then the recipe tells them apart.
        name = recipe.digest if own else hashlib.sha256(listing).hexdigest()
        snapshot = Snapshot(self.root / "snapshots" / name, entries)
        self.holds.keep_used(name)
        write_atomically(snapshot.path.with_name(f"{name}.json"), listing)
        if not self._is_whole(snapshot):  # else another recipe made the same: somebody may be reading it
            self._place(snapshot, recipe, own)
        write_atomically(self._derived(recipe), msgspec.json.encode(Derived(recipe, name)))
        return snapshot

    def _place(self, snapshot: Snapshot, recipe: Recipe, own: Mapping[str, Path]) -> None:
        """Puts the directory of links where it belongs; a damaged one steps aside."""
        with self.workspace(recipe) as work:
            for entry in snapshot.files:
                link = work / "new" / entry.path
                link.parent.mkdir(parents=True, exist_ok=True)
                if entry.path in own:
                    link.symlink_to(own[entry.path].absolute())
                else:
                    self._link(entry, link, snapshot.path / entry.path)
            fsync_directory(work / "new")
            try:
                if snapshot.path.exists():
                    snapshot.path.rename(work / "old")
                (work / "new").rename(snapshot.path)
            except OSError:
                if not self._is_whole(snapshot):  # else one whom no lock kept out was faster
                    raise
            fsync_directory(snapshot.path.parent)

    def _derived(self, recipe: Recipe) -> Path:
        return self.root / "derived" / f"{recipe.digest}.json"

    def _link(self, entry: FileEntry, link: Path, final: Path) -> None:
        assert entry.sha256 is not None
        target = self.objects.path(entry.sha256)
        with suppress(OSError):
            link.symlink_to(os.path.relpath(target, final.parent))
            return
        with suppress(OSError):
            link.hardlink_to(target)
            self.objects.note_verified(entry.sha256, target.stat())  # a new link changes the ctime, not the content
            return
        shutil.copyfile(target, link)
        link.chmod(0o444)

    def _is_whole(self, snapshot: Snapshot) -> bool:
        return all(self._holds(snapshot, entry) for entry in snapshot.files)

    def _holds(self, snapshot: Snapshot, entry: FileEntry) -> bool:
        if entry.sha256 is not None and not self.objects.intact(entry.sha256):
            return False
        place = snapshot.path / entry.path
        try:
            found = place.stat()
            if entry.sha256 is not None and place.is_symlink():  # to the object, and to nothing else of its size
                return os.path.samestat(found, self.objects.path(entry.sha256).stat())
            return found.st_size == entry.size_bytes
        except OSError:
            return False


def _remove_if_abandoned(path: Path) -> None:
    """A lock that keeps nobody out says nothing: somebody may be at work there all the same."""
    with claim(path) as free:
        if free and keeps_others_out(path):
            shutil.rmtree(path, ignore_errors=True)
