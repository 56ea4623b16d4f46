"""What a model directory lacks, made once per store: a tokenizer.json, weights of the type that is computed in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tickertape.core.errors import StartupError
from tickertape.core.ports import Progress
from tickertape.weights.cast import CASTER_VERSION, CASTS, cast_bytes, cast_file
from tickertape.weights.files import unwritable
from tickertape.weights.header import Header
from tickertape.weights.ledger import Ledger
from tickertape.weights.objects import DigestWriter
from tickertape.weights.overlay import ModelFiles
from tickertape.weights.shards import read_shards
from tickertape.weights.store import Recipe, Snapshot, Store

__all__ = ["Derivation", "Report", "obtained"]

Report = Callable[[Progress], None]

_NOT_WRITTEN: Final = frozenset({"NoSpace", "ReadOnlyStore", "StoreFailed"})

_log = logging.getLogger(__name__)


class Derivation:
    """Gathers derived files of one model; `directory` is where they lie over the rest of it. Bytes that are made count
    as "derived" in `ledger`; `make_room` is asked before weights are written, and raises StartupError, code NoSpace."""

    def __init__(
        self,
        store: Store,
        files: ModelFiles,
        report: Report,
        *,
        ledger: Ledger | None = None,
        make_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._files = files
        self._report = report
        self._ledger = ledger or Ledger()
        self._make_room = make_room
        self._made: dict[str, str] = {}

    def tokenizer(self) -> None:
        """Raises StartupError: UnsupportedTokenizer, BadTokenizer, and what an unwritable store gives."""
        from tickertape.weights.vocabularies.convert import CONVERTER_VERSION, convert_tokenizer, vocabulary_files

        directory = self._files.directory
        if not (names := vocabulary_files(directory)):
            return
        inputs = {name: self._files.identity(name) for name in names}
        recipe = Recipe("tokenizer", {"converter": CONVERTER_VERSION, **inputs})

        def convert() -> Snapshot:
            digests = {}
            with self._store.workspace(recipe) as work:
                for name, content in convert_tokenizer(directory).items():
                    with DigestWriter(work / name) as out:
                        out.write(content)
                    self._ledger.received("derived", out.size_bytes)
                    self._store.objects.adopt(work / name, out.sha256)
                    digests[name] = out.sha256
                return self._store.publish(recipe, digests)

        self._take(obtained(self._store, recipe, convert, self._report, "converting the tokenizer"))

    def weights(self, found: str, wanted: str) -> None:
        """Casts from one type to another (as settings spell them); other types than CASTS are left to the workers, and
        so is everything where the store cannot be written to. Raises StartupError: OutOfRange, TruncatedFile, ..."""
        if found == wanted or found not in CASTS or wanted not in CASTS:
            return
        before = dict(self._made)
        try:
            for path, header in read_shards(self._files.directory).headers.items():
                self._take(self._cast(path, header, found, wanted))
        except StartupError as error:
            if error.code not in _NOT_WRITTEN:
                raise
            self._made = before
            _log.warning("%s; every worker keeps a private copy of the weights in %s", error.message, wanted)

    def directory(self) -> Path:
        """The model's own when nothing was derived. Raises StartupError when the store cannot be written to."""
        if not self._made:
            return self._files.directory
        try:
            return self._files.overlaid(self._store, self._made).path
        except OSError as error:
            raise unwritable(error, "laying out the model") from error

    def _take(self, snapshot: Snapshot) -> None:
        self._made |= {entry.path: entry.sha256 for entry in snapshot.files if entry.sha256 is not None}

    def _cast(self, path: Path, header: Header, found: str, wanted: str) -> Snapshot:
        inputs = {"file": self._files.identity(path.name), "name": path.name, "from": found, "to": wanted}
        recipe = Recipe("cast", {"caster": CASTER_VERSION, **inputs})

        def cast() -> Snapshot:
            self._make_room(cast_bytes(header, wanted, found))
            with self._store.workspace(recipe) as work:
                digest = cast_file(path, header, work / path.name, wanted, found, self._report)
                self._ledger.received("derived", (work / path.name).stat().st_size)
                self._store.objects.adopt(work / path.name, digest)
                return self._store.publish(recipe, {path.name: digest})

        return obtained(self._store, recipe, cast, self._report, f"casting the weights to {wanted}")


def obtained(store: Store, recipe: Recipe, make: Callable[[], Snapshot], report: Report, doing: str) -> Snapshot:
    """What `recipe` gives: found, or made by exactly one process of the node."""
    if (found := store.find(recipe)) is not None:
        return found
    try:
        with store.lock(recipe, lambda waited_s: report(Progress("wait", int(waited_s), 0, "seconds"))):
            return store.find(recipe) or make()
    except OSError as error:
        raise unwritable(error, doing) from error
