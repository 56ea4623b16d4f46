"""One file of a fetch: where it stands, and the steps that take it into the store."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tickertape.core.errors import StartupError
from tickertape.core.sources import CHUNK_BYTES, FileEntry, Manifest
from tickertape.weights.fetch.digest import Digest
from tickertape.weights.fetch.ports import Offer
from tickertape.weights.files import fsync_file
from tickertape.weights.header import MAX_HEADER_BYTES
from tickertape.weights.partial import Partial
from tickertape.weights.refs import Refs
from tickertape.weights.store import Store

__all__ = ["Incoming", "Phase", "discard_partials", "incoming_files"]

_FIRST_LOOK_BYTES: Final = 32 << 10
"""Asked for first of a weight file: the header of most shards fits."""

_STALE_S: Final = 3600.0
_WEIGHTS: Final = (".safetensors", ".gguf")


class Phase:
    """What comes first: what is small, then headers, then the rest."""

    SMALL, HEADER, BODY = range(3)


class Incoming:
    """Not thread-safe but for `digest`, which one thread at a time has; the fetch guards the rest by its lock."""

    def __init__(self, store: Store, refs: Refs, manifest: Manifest, entries: Sequence[FileEntry]) -> None:
        self.entry = entries[0]
        self.paths = [entry.path for entry in entries]  # one content may have several names
        if self.entry.size_bytes is None:
            raise StartupError(f"{self.entry.path}: its origin does not say how long it is", code="FetchFailed")
        self.size_bytes = self.entry.size_bytes
        self.is_weights = self.entry.path.endswith(_WEIGHTS)
        self.sha256: str | None = None  # once it is in the store
        self.partial: Partial | None = None
        self.digest: Digest | None = None
        self.offer = self.no_offer = Offer()
        self.peers_failed_until = 0.0
        self.peers_busy_until = 0.0
        self.from_peers = False
        self.is_digesting = False
        self.num_streams = 0  # of its body
        self.streams_since = float("-inf")
        self.last_active = float("-inf")
        self.was_begun = False
        self.wrong_bytes = 0
        self.is_doubted = False  # a sync failed: what is read may not be what lies on the disk
        self._store = store
        self._refs = refs
        self._key, self._is_resumable = _key(manifest, self.entry)
        self._directory = store.root / "partial" / self._key
        self._header_end = 0
        self._has_header = False
        self._copy: Path | None = None
        self._is_synced = False  # all of it

    @property
    def is_done(self) -> bool:
        return self.sha256 is not None

    @property
    def held_bytes(self) -> int:
        if self.is_done:
            return self.size_bytes
        return self.partial.held_bytes if self.partial is not None else 0

    @property
    def unallocated_bytes(self) -> int:
        """What the file will still take on the disk."""
        if self.is_done or self._is_synced:
            return 0
        try:
            return max(0, self.size_bytes - (self._directory / "data").stat().st_blocks * 512)
        except OSError:
            return self.size_bytes

    @property
    def has_missing(self) -> bool:
        return self.partial is not None and not self.is_done and self.partial.has_missing()

    def look(self) -> bool:
        """Whether the store has it, as another model's, another process's or an earlier run's. It is held then."""
        sha256 = self.entry.sha256 or self._refs.content(self._key)
        if sha256 is not None and self._store.objects.hold(sha256):
            self.sha256 = sha256
        return self.is_done

    def take(self) -> bool:
        """Opens the partial; False while another process has it. Raises OSError."""
        try:
            self.partial = Partial.take(self._directory, self.size_bytes)
            self.is_doubted = self._is_synced = False
            return self.partial is not None and self._begin(self.partial)
        except FileNotFoundError:  # whoever shares it without a lock was done, and cleaned up: look again
            partial, self.partial = self.partial, None
            if partial is not None:
                partial.close()
            return False

    def _begin(self, partial: Partial) -> bool:
        if self.look():  # whoever had it was done
            partial.remove()
            return True
        if not partial.exclusive:
            self._remove_old_copies()
            self._copy = self._directory / f"own.{secrets.token_hex(4)}"
        self.digest = Digest(partial, self.entry, self._copy)
        self.was_begun = partial.held_bytes > 0
        return True

    def wanted(self, headers_first: bool) -> tuple[int, int] | None:
        """The phase of what is missing next, and how much to ask for at once; None when nothing can be claimed."""
        if self.partial is None or not self.has_missing:
            return None
        if not self.is_weights:
            return Phase.SMALL, CHUNK_BYTES
        if not headers_first or self.has_header():
            return Phase.BODY, CHUNK_BYTES
        prefix = self.partial.prefix_bytes
        if not self.partial.is_free(prefix):
            return None  # the header is being fetched
        return Phase.HEADER, max(self._header_end, min(_FIRST_LOOK_BYTES, self.size_bytes)) - prefix

    def has_header(self) -> bool:
        """Whether what says where the tensors lie has come (not whether it is right)."""
        if self.is_done or self._has_header or self.partial is None or not self.entry.path.endswith(".safetensors"):
            return True
        prefix = self.partial.prefix_bytes
        if prefix < min(8, self.size_bytes):
            return False
        if not self._header_end:
            try:
                with self.partial.data.open("rb") as file:
                    length = int.from_bytes(file.read(8), "little")
            except FileNotFoundError:
                if self.partial.is_complete:
                    return False  # it is becoming an object just now, in another thread: `is_done` in a moment
                raise
            self._header_end = min(8 + min(length, MAX_HEADER_BYTES), self.size_bytes)
        self._has_header = prefix >= self._header_end  # and stays so while its first unit is somebody's claim
        return self._has_header

    @property
    def place(self) -> Path:
        """Where the file lies or comes to lie, by what is known now."""
        if self.sha256 is not None or self.partial is None:
            return self._store.objects.path(self.sha256 or self._key)
        return self.partial.data

    @property
    def lies_ready(self) -> bool:
        """Whether a model can be opened as far as this file goes: whole, or a weight file with its header and full size
        that will become the object named after its digest as it is."""
        if self.is_done:
            return True
        is_sure = self.partial is not None and self.partial.exclusive and self.entry.sha256 is not None
        return self.is_weights and is_sure and self.has_header()

    def publish(self) -> None:
        """Makes it an object: its digest has been found right. Raises FileNotFoundError when somebody who took us for
        dead cleaned up; OSError, and may be called again then, unless it `is_doubted` from there on."""
        assert self.partial is not None
        assert self.digest is not None
        sha256 = self.digest.sha256
        self.digest.close()
        self.partial.seal()
        self._sync(self._copy or self.partial.data)
        self._store.objects.adopt(self._copy or self.partial.data, sha256)
        if self.entry.sha256 is None and self._is_resumable:
            self._refs.note_content(self._key, sha256)
        self.partial.remove()
        self.sha256 = sha256

    def _sync(self, data: Path) -> None:
        if self._is_synced:
            return
        self.is_doubted = True
        fsync_file(data)
        self.is_doubted, self._is_synced = False, True

    def restart(self) -> None:
        """All that came is wrong."""
        assert self.partial is not None
        assert self.digest is not None
        self.digest.restart()
        self.partial.restart()
        self._header_end, self._has_header = 0, False
        self.from_peers = False

    def close(self) -> None:
        """Leaves what came to whoever comes next. May be called twice, and then `take`."""
        digest, self.digest = self.digest, None
        partial, self.partial = self.partial, None
        if digest is not None:
            digest.close()
        if partial is None:
            return
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)
            self._copy = None
        if self._is_resumable:
            partial.close()
        else:
            partial.remove()

    def _remove_old_copies(self) -> None:
        """Of processes that were killed. One that is alive after all takes the loss of its own for a reason to begin
        anew."""
        now = (self._directory / "lock").stat().st_mtime  # written a moment ago, by the clock that counts here
        for path in self._directory.glob("own.*"):
            with suppress(OSError):
                if now - path.stat().st_mtime > _STALE_S:
                    path.unlink()


def _key(manifest: Manifest, entry: FileEntry) -> tuple[str, bool]:
    """What the partial is named after, and whether that pins the content, so that it may be resumed."""
    if entry.sha256 is not None:
        return entry.sha256, True
    if entry.git_sha1 is not None:
        identity: list[str | int | None] = ["git", entry.git_sha1, entry.size_bytes]
    elif entry.etag or manifest.revision:
        identity = ["etag", manifest.uri, manifest.revision, entry.path, entry.size_bytes, entry.etag]
    else:
        return secrets.token_hex(32), False
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest(), True


def incoming_files(store: Store, manifest: Manifest) -> list[Incoming]:
    """One for each content. Raises StartupError when a size is not known."""
    refs = Refs(store.root)
    grouped: dict[str, list[FileEntry]] = {}
    for entry in manifest.files:
        grouped.setdefault(entry.sha256 or entry.git_sha1 or f"path {entry.path}", []).append(entry)
    return [Incoming(store, refs, manifest, entries) for entries in grouped.values()]


def discard_partials(store: Store, outdated: Manifest, current: Manifest) -> None:
    """Removes what came of files whose state nothing names any more; what another process has open stays."""
    wanted = {_key(current, entry)[0] for entry in current.files}
    for entry in outdated.files:
        key, is_resumable = _key(outdated, entry)
        directory = store.root / "partial" / key
        is_named = entry.sha256 is not None or entry.git_sha1 is not None
        if is_named or not is_resumable or key in wanted or entry.size_bytes is None or not directory.exists():
            continue
        with suppress(OSError):
            partial = Partial.take(directory, entry.size_bytes)
            if partial is not None and partial.exclusive:
                partial.remove()
            elif partial is not None:
                partial.close()
