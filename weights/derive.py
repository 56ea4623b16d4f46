"""What a model directory lacks, made once per store: a tokenizer.json, weights of the type that is computed in, or of 8
bits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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
from tickertape.weights.quantize import (
    QUANTIZER_VERSION,
    has_linears,
    marked_config,
    quantize_file,
    quantized_bytes,
    scales_indexed,
)
from tickertape.weights.shards import INDEX, Shards, read_shards
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

        def convert(work: Path) -> dict[str, str]:
            return _written(work, convert_tokenizer(directory))

        self._take(self._derived(recipe, convert, "converting the tokenizer"))

    def weights(self, found: str, wanted: str) -> None:
        """Casts from one type to another (as settings spell them); other types than CASTS are left to the workers, and
        so is everything where the store cannot be written to. Raises StartupError: OutOfRange, TruncatedFile, ..."""
        if found == wanted or found not in CASTS or wanted not in CASTS:
            return
        with self._or_left_to_workers(wanted):
            for path, header in read_shards(self._files.directory).headers.items():
                self._take(self._cast(path, header, found, wanted))

    def int8_weights(self, found: str, wanted: str) -> None:
        """Quantizes linear layers, casts the rest from one type to another where both are CASTS, and says so in
        config.json. Nothing to do for a model without such layers, or quantized already. Left to the workers where
        the store cannot be written to. Raises StartupError as `weights` does."""
        shards = read_shards(self._files.directory)
        if not any(map(has_linears, shards.headers.values())):
            self.weights(found, wanted)
            return
        with self._or_left_to_workers("int8"):
            for path, header in shards.headers.items():
                self._take(self._quantized(path, header, found, wanted if wanted in CASTS else found))
            self._take(self._described(shards))

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

    @contextmanager
    def _or_left_to_workers(self, wanted: str) -> Iterator[None]:
        before = dict(self._made)
        try:
            yield
        except StartupError as error:
            if error.code not in _NOT_WRITTEN:
                raise
            self._made = before
            _log.warning("%s; every worker keeps a private copy of the weights in %s", error.message, wanted)

    def _cast(self, path: Path, header: Header, found: str, wanted: str) -> Snapshot:
        inputs = {"file": self._files.identity(path.name), "name": path.name, "from": found, "to": wanted}
        recipe = Recipe("cast", {"caster": CASTER_VERSION, **inputs})

        def cast(work: Path) -> dict[str, str]:
            self._make_room(cast_bytes(header, wanted, found))
            return {path.name: cast_file(path, header, work / path.name, wanted, found, self._report)}

        return self._derived(recipe, cast, f"casting the weights to {wanted}")

    def _quantized(self, path: Path, header: Header, found: str, wanted: str) -> Snapshot:
        inputs = {"file": self._files.identity(path.name), "name": path.name, "from": found, "to": wanted}
        recipe = Recipe("int8", {"quantizer": QUANTIZER_VERSION, **inputs})

        def quantize(work: Path) -> dict[str, str]:
            self._make_room(quantized_bytes(header, wanted, found))
            return {path.name: quantize_file(path, header, work / path.name, wanted, found, self._report)}

        return self._derived(recipe, quantize, "quantizing the weights")

    def _described(self, shards: Shards) -> Snapshot:
        """config.json, and the index where there is one, of the model when it is quantized."""
        directory = self._files.directory
        change: dict[str, Callable[[bytes], bytes]] = {
            "config.json": marked_config,
            INDEX: partial(scales_indexed, shards),
        }
        contents = {name: (directory / name).read_bytes() for name in change if (directory / name).is_file()}
        inputs = {f"file:{name}": self._files.identity(name) for name in contents}

        def describe(work: Path) -> dict[str, str]:
            return _written(work, {name: change[name](raw) for name, raw in contents.items()})

        recipe = Recipe("int8-description", {"quantizer": QUANTIZER_VERSION, **inputs})
        return self._derived(recipe, describe, "quantizing the weights")

    def _derived(self, recipe: Recipe, write: Callable[[Path], dict[str, str]], doing: str) -> Snapshot:
        """What `write` makes in an empty directory, of which it returns the sha256 of each file."""

        def make() -> Snapshot:
            with self._store.workspace(recipe) as work:
                digests = write(work)
                for name, digest in digests.items():
                    self._ledger.received("derived", (work / name).stat().st_size)
                    self._store.objects.adopt(work / name, digest)
                return self._store.publish(recipe, digests)

        return obtained(self._store, recipe, make, self._report, doing)


def _written(work: Path, contents: Mapping[str, bytes]) -> dict[str, str]:
    digests = {}
    for name, content in contents.items():
        with DigestWriter(work / name) as out:
            out.write(content)
        digests[name] = out.sha256
    return digests


def obtained(store: Store, recipe: Recipe, make: Callable[[], Snapshot], report: Report, doing: str) -> Snapshot:
    """What `recipe` gives: found, or made by exactly one process of the node."""

    def waiting(waited_s: float) -> None:
        report(Progress("wait", int(waited_s), 0, "seconds", detail=f"another process of this node is {doing}"))

    if (found := store.find(recipe)) is not None:
        return found
    try:
        with store.lock(recipe, waiting):
            return store.find(recipe) or make()
    except OSError as error:
        raise unwritable(error, doing) from error
