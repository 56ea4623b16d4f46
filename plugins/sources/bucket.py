"""A prefix of a bucket: what lies there, and ranged reads of it, pinned to the etags that the listing gave."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from msgspec import structs
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import from_url

from tickertape.plugins import FileEntry, Manifest, OriginChanged, OriginError, StartupError
from tickertape.plugins.sources.http_answers import refusal
from tickertape.plugins.sources.listing import LISTING, MAX_LISTING_BYTES, read_listing
from tickertape.plugins.sources.model_files import PICKLES, choose_files, is_weights_file
from tickertape.plugins.sources.revision import revision_of

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

__all__ = ["Bucket", "BucketOrigin"]

_PIECE_BYTES: Final = 1 << 20
_CONNECT_S: Final = 10.0
_STATUS: Final = re.compile(r"\bstatus code: (\d{3})\b")
_FAULTS: Final = (BaseError, OSError, ValueError)


class Bucket:
    """What a URI names. Asks once: obstore's own retries are off, since the store of weights decides about those."""

    def __init__(self, uri: str, config: Mapping[str, Any], stall_s: float) -> None:
        """Raises StartupError: UnsupportedSource, PickleOnly, BadConfig (what the environment says cannot be)."""
        parts = urlsplit(uri)
        if not parts.netloc or parts.query or parts.fragment:
            raise StartupError(f"{uri}: expected {parts.scheme}://BUCKET/PREFIX[/FILE]", code="UnsupportedSource")
        path = unquote(parts.path).strip("/")
        prefix, _, last = path.rpartition("/")
        self._uri = uri
        self._file = last if is_weights_file(last) else None
        self._prefix = prefix if self._file else path
        self._where = f"{parts.scheme}://{parts.netloc}/{self._prefix}"
        if self._file is not None and self._file.endswith(PICKLES):
            raise StartupError(f"{uri}: pickled weights are never read; convert to safetensors", code="PickleOnly")
        silence = timedelta(seconds=stall_s)
        options: ClientConfig = {  # instead of what obstore reads from the environment for its client: it takes either
            "allow_http": True,  # an endpoint without TLS is one that the operator named
            "connect_timeout": timedelta(seconds=min(_CONNECT_S, stall_s)),
            "read_timeout": silence,
            "timeout": timedelta(days=1),  # of a whole answer: as long as bytes come, all is well
        }
        try:
            self._store = from_url(
                f"{parts.scheme}://{parts.netloc}/",
                client_options=options,
                retry_config={"max_retries": 0, "retry_timeout": silence},
                **config,
            )
        except _FAULTS as error:
            reason = str(error).partition("\n")[0]
            raise StartupError(f"{self._where}: {reason}", code="BadConfig") from None

    def resolve(self) -> Manifest:
        """See `ObjectStoreSource.resolve`."""
        found = self._list()
        if not found:
            raise StartupError(f"{self._where}: nothing lies there", code="NotFound")
        if self._file is None and LISTING in found:
            found = self._with_digests(found)
        chosen = choose_files(found, self._where, self._file)
        files = tuple(found[path] for path in chosen)
        return Manifest(self._uri, revision_of(files), files)

    def origin(self) -> BucketOrigin:
        return BucketOrigin(self)

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        """See `Origin.read`."""
        end = entry.size_bytes if end is None else end
        if end is not None and start >= end:
            return
        what = f"{self._where}/{entry.path}"
        options: GetOptions = {"range": {"offset": start} if end is None else (start, end)}
        if entry.etag is not None:
            options["if_match"] = entry.etag
        num_read = 0
        try:
            answer = obstore.get(self._store, self._key(entry.path), options=options)
            if entry.size_bytes is not None and answer.meta["size"] != entry.size_bytes:
                raise OriginChanged(
                    f"{what}: it has {answer.meta['size']} bytes, and had {entry.size_bytes} when it was listed"
                )
            if answer.range[0] != start or (end is not None and answer.range[1] != end):
                raise OriginChanged(f"{what}: another range came than was asked for", code="UnexpectedAnswer")
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                num_read += len(piece)
                yield memoryview(piece)
        except _FAULTS as error:
            raise _failure(what, error) from None
        if end is not None and num_read != end - start:
            raise OriginError(f"{what}: {num_read} bytes came, {end - start} were promised")

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _list(self) -> dict[str, FileEntry]:
        cut = len(self._prefix) + 1 if self._prefix else 0
        try:
            found = obstore.list_with_delimiter(self._store, self._prefix or None)["objects"]
        except _FAULTS as error:
            raise _failure(self._where, error) from None
        return {
            meta["path"][cut:]: FileEntry(meta["path"][cut:], meta["size"], etag=meta["e_tag"])
            for meta in found
            if meta["size"] > 0 or not meta["path"].endswith("/")
        }

    def _with_digests(self, found: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """What manifest.json lists, pinned to what lies there now."""
        where, listing = f"{self._where}/{LISTING}", found[LISTING]
        if (listing.size_bytes or 0) > MAX_LISTING_BYTES:
            raise StartupError(f"{where}: is over {MAX_LISTING_BYTES} bytes", code="BadManifest")
        data = b"".join(self.read(listing, 0, None))
        listed = {}
        for entry in read_listing(data, where):
            there = found.get(entry.path)
            if there is None:
                raise StartupError(f"{where}: lists {entry.path}, which does not lie there", code="BadManifest")
            if there.size_bytes != entry.size_bytes:
                raise StartupError(
                    f"{where}: lists {entry.path} with {entry.size_bytes} bytes, it has {there.size_bytes}",
                    code="BadManifest",
                )
            listed[entry.path] = structs.replace(entry, etag=there.etag)
        return listed


class BucketOrigin:
    """An `Origin`. Connections are obstore's own: it ends those of readers that were closed."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._closed = False

    def read(self, entry: FileEntry, start: int, end: int | None) -> Generator[memoryview, None, None]:
        """See `Origin.read`. What is read while `close` is called ends at the next piece."""
        with closing(self._bucket.read(entry, start, end)) as pieces:
            for piece in pieces:
                if self._closed:
                    raise OriginError(f"{entry.path}: the fetch has ended")
                yield piece

    def close(self) -> None:
        self._closed = True


def _failure(what: str, error: Exception) -> StartupError:
    """obstore's messages hold URLs and whole answers: what they mean is read off, and no more."""
    if isinstance(error, PreconditionError):
        return OriginChanged(f"{what}: it was replaced after its files were listed")
    if isinstance(error, FileNotFoundError):
        return StartupError(f"{what}: not found", code="NotFound")
    if isinstance(error, UnauthenticatedError):
        return refusal(401, {}, what)
    if isinstance(error, PermissionDeniedError):
        return refusal(403, {}, what)
    if (status := _STATUS.search(str(error))) is not None:
        return refusal(int(status[1]), {}, what)
    if "timed out" in str(error).lower() or "TimedOut" in str(error):
        return OriginError(f"{what}: the store is silent")
    return OriginError(f"{what}: the store cannot be reached, or broke off ({type(error).__name__})")
