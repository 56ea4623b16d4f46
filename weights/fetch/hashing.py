"""Digests, syncs and the publication of the files of a fetch, in threads of their own: hashlib lets others run."""

from __future__ import annotations

import functools
import os
from typing import Final

from tickertape.core.errors import StartupError
from tickertape.weights.fetch.crew import Crew, Task
from tickertape.weights.fetch.digest import WrongChunk
from tickertape.weights.fetch.fetching import Fetching
from tickertape.weights.fetch.incoming import Incoming
from tickertape.weights.fetch.state import FetchState
from tickertape.weights.partial import UNIT_BYTES, Partial

__all__ = ["Hashing"]

_MOST_THREADS: Final = 4
_SYNC_BYTES: Final = 64 << 20
_MOST_WRONG: Final = 3  # times the file


class Hashing:
    """Works on whatever file has a unit that its digest has not seen."""

    def __init__(self, state: FetchState, fetching: Fetching, crew: Crew) -> None:
        self._state = state
        self._with = fetching
        self._crew = crew
        self._buffers: list[bytearray] = []

    def start(self) -> None:
        self._crew.hire("digest", min(_MOST_THREADS, os.cpu_count() or 1), self._choose_digest)
        self._crew.hire("sync", 1, self._choose_sync)

    def is_busy(self) -> bool:
        """Whether something is being hashed or published, or could be. Under the lock."""
        has_room = self._state.has_room
        return any(file.is_digesting or (has_room and _is_due(file)) for file in self._state.files)

    def _choose_digest(self) -> Task | None:
        if not self._state.has_room:
            return None  # what could not be published is tried again when there is some
        for file in self._state.files:
            if not file.is_digesting and _is_due(file):
                file.is_digesting = True
                return functools.partial(self._digest, file)
        return None

    def _choose_sync(self) -> Task | None:
        for file in self._state.files:
            if (partial := file.partial) is not None and partial.unsynced_bytes >= _SYNC_BYTES and not file.is_done:
                return functools.partial(self._sync, file, partial)
        return None

    def _sync(self, file: Incoming, partial: Partial) -> None:
        try:
            partial.sync()
        except OSError as error:
            file.is_doubted = True
            self._state.unwritten(error, "fetching the model")

    def _digest(self, file: Incoming) -> None:
        assert file.digest is not None
        digest, buffer = file.digest, self._buffers.pop() if self._buffers else bytearray(UNIT_BYTES)
        try:
            while digest.is_ready and not self._crew.stopping.is_set():
                self._with.ledger.count("num_hashed_bytes", digest.advance(buffer))
            if digest.is_finished and not file.is_doubted:
                if digest.matches():
                    self._publish(file)
                else:
                    self._blame(file, file.size_bytes)
                    file.restart()
        except WrongChunk as wrong:
            self._blame(file, wrong.num_bytes)
        except FileNotFoundError:  # somebody took us for dead and cleaned up: begin anew
            with self._state.lock:
                file.close()
        except OSError as error:
            digest.restart()  # the copy beside a partial that others write to lacks what it took in
            self._state.unwritten(error, "verifying the model")
        finally:
            self._buffers.append(buffer)
            with self._state.lock:
                file.is_digesting = False
                if file.is_doubted and digest.is_finished:
                    file.close()  # whoever takes it reads every byte again, and compares
                self._crew.call("digest", "origin", "peer")
                self._state.changed.notify_all()

    def _publish(self, file: Incoming) -> None:
        try:
            file.publish()
        except FileNotFoundError:
            raise
        except OSError as error:
            self._state.unwritten(error, "publishing the model")
        else:
            with self._state.lock:
                self._state.was_full = False

    def _blame(self, file: Incoming, num_bytes: int) -> None:
        """Raises StartupError when it has been wrong too often."""
        file.wrong_bytes += max(1, num_bytes)
        if file.from_peers and file.entry.sha256 is not None:
            self._with.peers.reject(file.entry.sha256)
            with self._state.lock:
                file.offer = file.no_offer  # until they are asked again
        error = StartupError(f"{file.entry.path}: its digest is not the one promised", code="CorruptDownload")
        if file.wrong_bytes > _MOST_WRONG * file.size_bytes:
            raise error
        with self._state.lock:
            self._state.trouble = error


def _is_due(file: Incoming) -> bool:
    digest = file.digest
    return digest is not None and not file.is_done and (digest.is_ready or digest.is_finished)
