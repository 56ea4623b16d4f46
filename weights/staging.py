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
) -> ModelSpec | None:
    """The model in such a directory; None when it is to be converted or cast first, or cannot be opened like this."""
    from tickertape.weights.vocabularies.convert import vocabulary_files  # heavy

    try:
        directory = lay_out(store, recipe, places)
    except OSError as error:
        _log.info("the model is not opened before it is whole: %s", error)
        return None
    try:
        with opened(arrivals(directory)) as fds:  # some of them are renamed just now
            spec = read_spec(directory, name, fds)
        is_cast = spec.dtype != dtype and spec.dtype in CASTS and dtype in CASTS
        if not is_cast and (reads_itself(directory) or not vocabulary_files(directory)):
            return spec
    except (OSError, StartupError) as error:
        _log.info("the model is not opened before it is whole: %s", error)
    _remove(store, directory)
    return None


def _remove(store: Store, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    store.holds.drop(directory)
