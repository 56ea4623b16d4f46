"""Hashing what is in the store once more, against the names it has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct

from tickertape.core.ports import Progress
from tickertape.weights.holds import alone
from tickertape.weights.store import Store

__all__ = ["Fault", "discard", "faults"]

_PIECE_BYTES = 4 << 20


class Fault(Struct, frozen=True):
    """An object that is not what its name says. `missing`: it is not there, or cannot be read."""

    sha256: str
    kind: Literal["corrupt", "missing"]


def faults(store: Store, digests: Iterable[str], report: Callable[[Progress], None]) -> Iterator[Fault]:
    """Reads every object through, whatever is noted about it, and gives those that are wrong as they are found.
    `report` hears of stage "verify". Writes nothing."""
    paths = {digest: store.objects.path(digest) for digest in sorted(digests)}
    sizes = {digest: path.stat().st_size for digest, path in paths.items() if path.is_file()}
    done, total = 0, sum(sizes.values())
    report(Progress("verify", done, total))
    for digest, path in paths.items():
        before, content = done, hashlib.sha256()
        try:
            with path.open("rb", buffering=0) as file:
                while piece := file.read(_PIECE_BYTES):
                    content.update(piece)
                    done += len(piece)
                    report(Progress("verify", min(done, total), total))
        except OSError:
            yield Fault(digest, "missing")
        else:
            if content.hexdigest() != digest:
                yield Fault(digest, "corrupt")
        done = before + sizes.get(digest, 0)


def discard(store: Store, sha256: str) -> None:
    """Takes a corrupt object away, so that whoever looks for it fetches or makes it again. Whoever has it mapped keeps
    the mapping. Raises OSError."""
    with alone(store.root):
        store.objects.meta_path(sha256).unlink(missing_ok=True)
        store.objects.path(sha256).unlink(missing_ok=True)
