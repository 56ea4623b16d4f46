"""A model directory that can be opened while its weights are still coming."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tickertape.core.backend import ModelSpec
from tickertape.core.errors import StartupError
from tickertape.weights.arriving import arrivals, opened
from tickertape.weights.cast import CASTS
from tickertape.weights.spec import read_spec
from tickertape.weights.store import Recipe, Store, check_relative

__all__ = ["lay_out", "staged"]

_log = logging.getLogger(__name__)


def lay_out(store: Store, recipe: Recipe, places: Mapping[str, Path]) -> Path:
    """A directory of links to where the files of a model lie or come to lie. It stays for as long as this process has
    the store: whoever was told of it may be slow to start. Raises OSError."""
    directory = store.root / "tmp" / f"{recipe.digest}.{secrets.token_hex(4)}"
    directory.mkdir(parents=True)
    store.holds.keep(directory)
    try:
        for path, place in places.items():
            link = directory / check_relative(path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(place)
    except OSError:
        _remove(store, directory)
        raise
    return directory


def staged(
    store: Store,
    recipe: Recipe,
    places: Mapping[str, Path],
    name: str,
    dtype: str,
    reads_itself: Callable[[Path], bool],
    check: Callable[[ModelSpec], None],
    *,
    is_open: bool,
) -> ModelSpec | None:
    """The model in such a directory; None when it is to be converted or cast first, or cannot be opened like this, or
    not `is_open`. Raises what `check` does when it hears of the model."""
    from tickertape.weights.vocabularies.convert import vocabulary_files  # heavy

    try:
        directory = lay_out(store, recipe, places)
    except OSError as error:
        _log.info("the model is not opened before it is whole: %s", error)
        return None
    is_kept = False
    try:
        if (spec := _read(directory, name)) is None:
            return None
        check(spec)
        is_cast = spec.dtype != dtype and spec.dtype in CASTS and dtype in CASTS
        is_kept = is_open and not is_cast and (reads_itself(directory) or not vocabulary_files(directory))
        return spec if is_kept else None
    finally:
        if not is_kept:
            _remove(store, directory)


def _read(directory: Path, name: str) -> ModelSpec | None:
    try:
        with opened(arrivals(directory)) as fds:  # some of them are renamed just now
            return read_spec(directory, name, fds)
    except (OSError, StartupError) as error:
        _log.info("the model is not opened before it is whole: %s", error)
        return None


def _remove(store: Store, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    store.holds.drop(directory)
