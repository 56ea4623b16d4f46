"""The files of a `RangedSource` in the store: resolved, fetched, published; planned anew when they change meanwhile."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tickertape.core.errors import OriginChanged, StartupError
from tickertape.core.ports import Progress
from tickertape.core.sources import FileEntry, Manifest, RangedSource
from tickertape.weights.derive import obtained
from tickertape.weights.fetch.backoff import Backoff
from tickertape.weights.fetch.fetch import Fetch
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.incoming import discard_partials
from tickertape.weights.fetch.waiting import ROOM_EVERY_S, wait_until
from tickertape.weights.files import unwritable
from tickertape.weights.objects import is_sha256
from tickertape.weights.resolving import Resolving, fetched_by
from tickertape.weights.store import Recipe, Snapshot, Store, check_relative
from tickertape.weights.uris import public

__all__ = ["RangedFiles"]

_MOST_MOVES: Final = 4
_MAX_FILE_BYTES: Final = (1 << 63) - 1
_SHA1: Final = re.compile(r"[0-9a-f]{40}")

_log = logging.getLogger(__name__)

Arriving = Callable[[Recipe, Mapping[str, Path]], None]
"""See `Fetch`; with the recipe of what is coming."""


class RangedFiles:
    """Obtains what one URI names. One thread."""

    def __init__(
        self, uri: str, source: RangedSource, store: Store, fetching: Fetching, report: Callable[[Progress], None]
    ) -> None:
        self._source = source
        self._store = store
        self._with = fetching
        self._report = report
        self._resolving = Resolving(uri, source, store, fetching, report)

    def obtain(self, arriving: Arriving | None = None) -> Snapshot:
        """Raises StartupError in one line, also when the origin says again and again that its files have changed, and
        nothing that stays of use comes in between."""
        backoff, num_moves, num_bytes = Backoff(self._with.rng, shortest_s=0.5), 0, self._num_bytes()
        outdated: Manifest | None = None
        while True:
            manifest = self._resolving.manifest()
            if outdated is not None:
                discard_partials(self._store, outdated, manifest)
            try:
                snapshot = self._obtained(manifest, arriving)
            except OriginChanged as error:
                came, num_bytes = self._num_bytes() > num_bytes, self._num_bytes()
                num_moves = 1 if came and _has_digests(manifest) else num_moves + 1
                outdated = manifest
                if num_moves >= _MOST_MOVES:
                    raise
                _log.warning("%s; planning anew", error.message)
                moment = self._with.clock.now() + backoff.next_s()
                wait_until(moment, self._with.clock, lambda: self._report(Progress("plan", 0, 0, source="origin")))
            else:
                self._resolving.note(manifest)
                return snapshot

    def _obtained(self, manifest: Manifest, arriving: Arriving | None) -> Snapshot:
        recipe, is_here = fetched_by(manifest), True

        def fetch() -> Snapshot:
            nonlocal is_here
            is_here = False
            _check(manifest)
            tell = None if arriving is None else lambda places: arriving(recipe, places)
            steps = Fetch(manifest, lambda: self._source.open(manifest), self._store, self._with, self._report, tell)
            return self._published(recipe, steps.run())

        snapshot = obtained(self._store, recipe, fetch, self._report, "fetching the model")
        if is_here:
            self._with.ledger.count("num_cache_hits", len(snapshot.files))
        return snapshot

    def _published(self, recipe: Recipe, digests: Mapping[str, str]) -> Snapshot:
        """Waits for room as the fetch does. Raises OSError."""
        clock = self._with.clock
        deadline = clock.now() + self._with.options.fetch_patience_s
        while True:
            try:
                return self._store.publish(recipe, digests)
            except OSError as error:
                trouble = unwritable(error, "publishing the model")
                if trouble.code != "NoSpace" or clock.now() >= deadline:
                    raise
                tell = partial(self._report, Progress("space", 0, 0, detail=trouble.message))
                wait_until(clock.now() + ROOM_EVERY_S, clock, tell)

    def _num_bytes(self) -> int:
        return sum(self._with.ledger.counts().num_bytes.values())


def _has_digests(manifest: Manifest) -> bool:
    """Whether what has come may be used for another state of the files, too."""
    return all(entry.sha256 is not None or entry.git_sha1 is not None for entry in manifest.files)


def _check(manifest: Manifest) -> None:
    if not manifest.files:
        raise StartupError(f"{public(manifest.uri)}: has no files", code="NotAModel")
    for entry in manifest.files:
        try:
            check_relative(entry.path)
            _check_numbers(entry)
        except ValueError as error:
            raise StartupError(f"{public(manifest.uri)}: {error}", code="BadManifest") from error


def _check_numbers(entry: FileEntry) -> None:
    """Files are named after digests here, and allocated by their sizes: neither is taken on the word of an origin."""
    if entry.size_bytes is not None and not 0 <= entry.size_bytes <= _MAX_FILE_BYTES:
        raise ValueError(f"{entry.path!r} has an impossible size")
    sha256 = () if entry.sha256 is None else (entry.sha256,)
    if not all(map(is_sha256, (*sha256, *entry.chunk_sha256))):
        raise ValueError(f"{entry.path!r} has a digest that is no sha256")
    if entry.git_sha1 is not None and not _SHA1.fullmatch(entry.git_sha1):
        raise ValueError(f"{entry.path!r} has a digest that is no sha1")
