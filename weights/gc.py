"""Removing what nobody needs, then what nobody used for the longest time.

Each removal happens alone behind the gate (holds.py), after asking once more whether it may happen: a snapshot that is
not pinned and not used, an object that is not mapped and that no snapshot names, work that nobody is at. A snapshot
goes in the order derived records, directory, listing: `Store.find` sees it whole or not at all, wherever a kill falls;
what a killed collector leaves is what the next one takes first.

Collecting rests on locks that every user of the store sees. Where they do not exclude, or where other machines may use
the same files, nothing is collected unless the operator says that nobody else is there (`force`).
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from tickertape.core.errors import StartupError
from tickertape.core.sources import FileEntry
from tickertape.weights.files import unwritable
from tickertape.weights.holds import alone, claim, why_doubted
from tickertape.weights.lock import FileLock
from tickertape.weights.pins import Pins
from tickertape.weights.store import Store
from tickertape.weights.usage import (
    Kept,
    Leftover,
    Usage,
    derived_records,
    last_used,
    locks_of,
    survey,
    weight_paths,
)

__all__ = ["Collector", "Victim", "evictable", "garbage"]

_log = logging.getLogger(__name__)


class Victim(Struct, frozen=True):
    """Something that may go. `size_bytes` is what it frees when those before it in the list are gone."""

    kind: Literal["snapshot", "object", "partial", "tmp"]
    name: str
    size_bytes: int
    last_used: float
    what: Kept | Leftover


def garbage(usage: Usage) -> tuple[Victim, ...]:
    """What nobody can have any use for: abandoned workspaces, and snapshots that were never finished."""
    free = _Counted(usage)
    found = [_left(leftover) for leftover in usage.leftovers if leftover.kind == "tmp" and not leftover.busy]
    return (*found, *(free.without(kept) for kept in usage.snapshots if _unfinished(kept)))


def evictable(usage: Usage) -> tuple[Victim, ...]:
    """What can be fetched or made again, in the order in which it should go: the least recently used first; of the
    snapshots of one model, what was made here before what came over the network. What is left of a fetch that was
    broken off counts as used when it was last written: it may go on soon."""
    free = _Counted(usage)
    for kept in filter(_unfinished, usage.snapshots):  # these are garbage, and went before
        free.without(kept)
    # Who uses what was made of a model uses the model: a start asks for both.
    used = {kept.id: kept.last_used for kept in usage.snapshots}
    busy = {kept.id for kept in usage.snapshots if kept.in_use or kept.pinned}
    for kept in usage.snapshots:
        for root in kept.roots & used.keys():
            used[root] = max(used[root], kept.last_used)
            busy |= {root} if kept.in_use else set()
    queue: list[tuple[float, bool, Kept | Leftover]] = [
        (used[kept.id], kept.id in kept.roots, kept) for kept in usage.snapshots if kept.recipes and kept.id not in busy
    ]
    queue += [(left.last_used, False, left) for left in usage.leftovers if left.kind != "tmp" and not left.busy]
    queue.sort(key=lambda item: item[:2])
    return tuple(
        free.without(what, last_used) if isinstance(what, Kept) else _left(what) for last_used, _, what in queue
    )


class Collector:
    """Removes victims from a store. One collects at a time; the others wait and look again. Not thread-safe.

    `removed` hears of every victim that went, with the bytes that it freed.
    """

    def __init__(
        self, store: Store, *, force: bool = False, removed: Callable[[Victim, int], None] = lambda *_: None
    ) -> None:
        self._store = store
        self._force = force
        self._removed = removed
        self._names = _Names(store.root / "snapshots")

    def check(self) -> None:
        """Raises StartupError: NotCollectable where locks cannot be trusted, ReadOnlyStore."""
        if self._force:
            return
        try:
            why = why_doubted(self._store.root)
        except OSError as error:
            raise unwritable(error, "making room") from error
        if why is not None:
            raise StartupError(f"nothing is removed from the weights store: {why}", code="NotCollectable")

    def collect(self, enough: Callable[[int], bool], choose: Callable[[Usage], Iterable[Victim]] | None = None) -> int:
        """Removes garbage, then what `choose` gives (`evictable` if not told), until `enough` of the bytes freed so
        far; returns these. Victims that somebody has come to use meanwhile stay. Raises StartupError."""
        if not self._store.root.exists():
            return 0  # and it is not made for that
        self.check()
        freed = 0
        try:
            with FileLock(self._store.root / "locks" / "gc.collecting"):
                if enough(0):
                    return 0
                usage = survey(self._store)
                for victim in (*garbage(usage), *(choose or evictable)(usage)):
                    if enough(freed):
                        break
                    freed += self._remove(victim, usage)
        except OSError as error:
            raise unwritable(error, "making room") from error
        return freed

    def _remove(self, victim: Victim, usage: Usage) -> int:
        if isinstance(victim.what, Kept):
            freed = self._remove_snapshot(victim.what, usage)
        elif victim.kind == "object":
            freed = victim.size_bytes if self._remove_object(victim.name) else None
        else:
            freed = victim.size_bytes if self._remove_leftover(victim.what) else None
        if freed is None:
            return 0
        _log.info("weights store: removed %s %s, %d bytes", victim.kind, victim.name, freed)
        self._removed(victim, freed)
        return freed

    def _remove_snapshot(self, kept: Kept, usage: Usage) -> int | None:
        """The bytes of the objects that went with it. None: it stays."""
        root = self._store.root
        folder = root / "snapshots" / kept.id
        used_by = [root / "used" / kept.id, *weight_paths(root, kept.id, kept.files)]
        with alone(root), _claimed(used_by) as unused:
            if not unused or last_used(root, kept.id) > kept.last_used:
                return None
            if not kept.roots.isdisjoint(Pins(root).keys()):
                return None
            for path, derived in derived_records(root):
                if derived.snapshot == kept.id:
                    path.unlink(missing_ok=True)
            _remove_tree(folder)
            (root / "used" / kept.id).unlink(missing_ok=True)
            folder.with_name(f"{kept.id}.json").unlink(missing_ok=True)  # last: it is what the next collector sees
        # Each by itself: whoever wants to look something up waits for one removal, not for all.
        return sum(usage.objects.get(digest, 0) for digest in sorted(kept.digests) if self._remove_object(digest))

    def _remove_object(self, digest: str) -> bool:
        path = self._store.objects.path(digest)
        with alone(self._store.root), claim(path) as unused:
            if not unused or not path.exists() or self._names.have(digest):
                return False
            self._store.objects.meta_path(digest).unlink(missing_ok=True)
            path.unlink()
            return True

    def _remove_leftover(self, leftover: Leftover) -> bool:
        root, path = self._store.root, leftover.path
        with alone(root), _claimed(locks_of(root, path)) as unused:
            if not unused or not path.exists():
                return False
            _remove_tree(path)
            return True


class _Names:
    """The objects that the listings name just now; each listing is read once. Ask behind the gate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[tuple[str, int, int], frozenset[str | None]] = {}

    def have(self, digest: str) -> bool:
        """True as well when a listing cannot be looked at."""
        now: dict[tuple[str, int, int], frozenset[str | None]] = {}
        for path in self._folder.glob("[!.]*.json"):
            try:
                stat = path.stat()
                seen = (path.name, stat.st_ino, stat.st_mtime_ns)
                now[seen] = self._read[seen] if seen in self._read else _named(path)
            except OSError:
                return True
        self._read = now
        return any(digest in named for named in now.values())


class _Counted:
    """What goes with a snapshot when others have gone before it."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._num_users = Counter(digest for kept in usage.snapshots for digest in kept.digests)

    def without(self, kept: Kept, last_used: float = 0.0) -> Victim:
        self._num_users.subtract(kept.digests)
        alone = [digest for digest in kept.digests if self._num_users[digest] == 0]
        return Victim("snapshot", kept.id, self._usage.bytes_of(alone), last_used, kept)


def _left(leftover: Leftover) -> Victim:
    return Victim(leftover.kind, leftover.path.name, leftover.size_bytes, leftover.last_used, leftover)


def _unfinished(kept: Kept) -> bool:
    return not (kept.recipes or kept.in_use or kept.pinned)


def _named(listing: Path) -> frozenset[str | None]:
    try:
        return frozenset(
            entry.sha256 for entry in msgspec.json.decode(listing.read_bytes(), type=tuple[FileEntry, ...])
        )
    except msgspec.DecodeError:
        return frozenset()  # and nobody finds it


@contextmanager
def _claimed(paths: Iterable[Path]) -> Iterator[bool]:
    """Whether all of them are nobody's: then they are ours inside."""
    with ExitStack() as stack:
        yield all(stack.enter_context(claim(path)) for path in paths)


def _remove_tree(path: Path) -> None:
    """Links are removed, never followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
