"""Compiled code kept on disk, so that only the first start after an installation compiles."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba import cfunc, types

__all__ = ["compiled", "find_directory"]


def find_directory(preferred: Path | None = None) -> Path | None:
    """A directory that can be written and that nobody else can write to: what is read from it is run. None: nowhere."""
    package = Path(__file__).resolve().parent
    user = os.getuid() if hasattr(os, "getuid") else 0
    places = [
        preferred,
        package / "__pycache__" / "kernels",
        Path(tempfile.gettempdir()) / f"tickertape-kernels-{user}",
    ]
    for place in filter(None, places):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = place.lstat()
        except OSError:
            continue
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
        owned = not hasattr(os, "getuid") or status.st_uid == user
        if private and owned and os.access(place, os.W_OK):
            return place
    return None


def compiled(function: Any, argument: types.Type, modules: tuple[ModuleType, ...], directory: Path | None) -> Any:
    """The numba function as a C callback void(argument), from `directory` or compiled and kept there. `modules` are
    those whose code ends up in it: numba itself would notice a change of the first only. Keep the result alive as long
    as its `address` is in use."""
    signature = types.void(argument)
    if directory is None:
        return cfunc(signature, error_model="numpy")(function.py_func)
    digest = hashlib.sha256(numba.__version__.encode())
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    with _kept_in(directory / digest.hexdigest()[:16]):
        return cfunc(signature, error_model="numpy", cache=True)(function.py_func)


@contextmanager
def _kept_in(directory: Path) -> Iterator[None]:
    """Numba takes the directory from a setting of the process, at the moment a function is declared."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
