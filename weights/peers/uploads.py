"""Who may take what, and how fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal

from msgspec import Struct

from tickertape.weights.rate import TokenBucket

__all__ = ["Busy", "Upload", "Uploads"]

_ALONE_S: Final = 5.0
_ALONE_BYTES: Final = 1 << 20
_RETRY_S: Final = (0.05, 30.0)


class Busy(Struct, frozen=True):
    """Not now. `scope`: whether only this object is in use, or everything."""

    scope: Literal["object", "server"]
    retry_after_s: float


class Upload:
    """A place among the uploads, from `Uploads.admit`; a context manager that gives it back."""

    def __init__(self, uploads: Uploads, sha256: str, taker: str, num_bytes: int, started: float) -> None:
        self.sha256 = sha256
        self.taker = taker
        self.num_bytes = num_bytes
        self.started = started
        self.num_sent = 0
        self._uploads = uploads

    def left_s(self, now: float) -> float:
        """An estimate by its speed so far."""
        if not self.num_sent:
            return 1.0
        return (self.num_bytes - self.num_sent) * (now - self.started) / self.num_sent

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.end(self)


class Uploads:
    """At most `max_uploads` at once, within one limit on bytes a second. Thread-safe.

    An object goes to one taker at a time, as long as that takes no more than a few seconds: at the same cost in bytes
    the first taker has it sooner, and then there are two to ask. Else whoever has a file first would send it to
    everybody at a fraction of the speed, and meanwhile the others would have nothing to give.
    """

    def __init__(self, max_uploads: int, bucket: TokenBucket, clock: Callable[[], float] = time.monotonic) -> None:
        self.bucket = bucket
        self._max_uploads = max_uploads
        self._clock = clock
        self._active: list[Upload] = []
        self._lock = threading.Lock()

    def admit(self, sha256: str, taker: str, num_bytes: int) -> Upload | Busy:
        with self._lock:
            now = self._clock()
            if len(self._active) >= self._max_uploads:
                return _busy("server", self._active, now)
            same = [upload for upload in self._active if self._excludes(upload, sha256, taker, now)]
            if same and num_bytes >= _ALONE_BYTES:
                return _busy("object", same, now)
            upload = Upload(self, sha256, taker, num_bytes, now)
            self._active.append(upload)
            return upload

    def end(self, upload: Upload) -> None:
        with self._lock:
            self._active.remove(upload)

    def _excludes(self, upload: Upload, sha256: str, taker: str, now: float) -> bool:
        return upload.sha256 == sha256 and upload.taker != taker and now - upload.started < _ALONE_S


def _busy(scope: Literal["object", "server"], uploads: list[Upload], now: float) -> Busy:
    shortest, longest = _RETRY_S
    return Busy(scope, min(longest, max(shortest, min(upload.left_s(now) for upload in uploads))))
