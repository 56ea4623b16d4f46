"""Weight files that are still being fetched: a staging directory links to their partial data, which has its full size
and a valid header before the rest has come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tickertape.core.errors import StartupError
from tickertape.weights.objects import Objects

__all__ = ["Arrival", "Waiting", "arrivals", "opened"]

_FIRST_NAP_S: Final = 0.02
_LONGEST_NAP_S: Final = 0.2
_PARTIAL: Final = "partial"

Waiting = Callable[[str, float], None]
"""Hears the name of the file that is waited for and the seconds waited, before each nap; may raise to give up."""


class Arrival:
    """One such file: `partial/<sha256>/data` on its way to `objects/<2 hex>/<sha256>`, by a rename once it is verified.
    An object of the store is whole and verified, so that its being there is all there is to wait for."""

    def __init__(self, name: str, partial: Path) -> None:
        self.name = name
        self._partial = partial
        self._object = Objects(partial.parents[2]).path(partial.parent.name)

    def open(self) -> int:
        """A descriptor of the file as far as it has come, or of the object. Raises StartupError, code MissingShard."""
        for path in (self._partial, self._object, self._partial):  # it may be renamed between the first two
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        raise StartupError(f"{self.name}: its download is gone", code="MissingShard")

    def wait(self, fd: int, waiting: Waiting) -> Path | None:
        """Returns once the file is verified: None when it is the one that `fd` has open, else where the one lies that
        took its place."""
        started, nap_s = time.monotonic(), _FIRST_NAP_S
        while True:
            try:
                found = os.stat(self._object)
            except FileNotFoundError:
                waiting(self.name, time.monotonic() - started)
                time.sleep(nap_s)
                nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)
            else:
                return None if os.path.samestat(found, os.fstat(fd)) else self._object


@contextmanager
def opened(coming: Mapping[Path, Arrival]) -> Iterator[dict[Path, int]]:
    """Descriptors of all of them, which stay good when the files are renamed meanwhile."""
    with ExitStack() as stack:
        fds = {}
        for path, arrival in coming.items():
            fds[path] = arrival.open()
            stack.callback(os.close, fds[path])
        yield fds


def arrivals(directory: Path) -> dict[Path, Arrival]:
    """The weight files of a staging directory that had not come when it was laid out."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        if path.is_symlink():
            target = directory / path.readlink()
            if target.parent.parent.name == _PARTIAL:
                found[path] = Arrival(path.name, Path(os.path.normpath(target)))
    return found
