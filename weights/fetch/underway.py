"""What this process is fetching, for its peers to see and to take what is verified of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tickertape.weights.fetch.clock import Clock
from tickertape.weights.fetch.incoming import Incoming
from tickertape.weights.peers.catalog import Partial

__all__ = ["Underway"]

_STILL_ACTIVE_S = 3.0


class Underway:
    """A `PartialCatalog` of the files whose bytes are coming right now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: list[tuple[list[Incoming], Clock]] = []

    @contextmanager
    def showing(self, files: list[Incoming], clock: Clock) -> Iterator[None]:
        entry = (files, clock)
        with self._lock:
            self._shown.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._shown.remove(entry)

    def partials(self) -> Collection[Partial]:
        return [_partial(file) for file, clock in self._files() if _is_active(file, clock) or _verified_bytes(file)]

    def open(self, sha256: str) -> tuple[int, Partial] | None:
        for file, _ in self._files():
            partial = file.partial
            if file.entry.sha256 == sha256 and partial is not None and _verified_bytes(file):
                try:
                    return os.open(partial.data, os.O_RDONLY | os.O_CLOEXEC), _partial(file)
                except FileNotFoundError:
                    return None  # it has become an object
        return None

    def _files(self) -> list[tuple[Incoming, Clock]]:
        with self._lock:
            shown = [(file, clock) for files, clock in self._shown for file in files]
        return [(file, clock) for file, clock in shown if file.entry.sha256 is not None and not file.is_done]


def _is_active(file: Incoming, clock: Clock) -> bool:
    return file.num_streams > 0 or clock.now() - file.last_active < _STILL_ACTIVE_S


def _verified_bytes(file: Incoming) -> int:
    """Only where nobody else can write to it afterwards."""
    partial, digest = file.partial, file.digest
    if partial is None or digest is None or not partial.exclusive:
        return 0
    return digest.verified_bytes


def _partial(file: Incoming) -> Partial:
    verified = _verified_bytes(file)
    return Partial(file.entry.sha256 or "", file.size_bytes, ((0, verified),) if verified else ())
