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
_YOUNG_S: Final = 0.5
_MUCH_SLOWER: Final = 0.25
_FADES: Final = 0.9
_RETRY_S: Final = (0.05, 30.0)


class Busy(Struct, frozen=True):
    """Not now. `scope`: whether only this object is in use, or nothing can be had."""

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

    def bytes_per_s(self, now: float) -> float:
        return self.num_sent / max(now - self.started, 1e-3)

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.end(self)


class Uploads:
    """At most `max_uploads` at once, within one limit on bytes a second. Thread-safe.

    They go to one taker at a time, as long as that takes no more than a few seconds, and to others beside one that is
    much slower than others were: at the same cost in bytes the first taker has its file sooner, and then there are two
    to ask. Else whoever has the files first would send them to everybody at a fraction of the speed, and meanwhile the
    others would have nothing to give. What is small is no reason to wait.
    """

    def __init__(self, max_uploads: int, bucket: TokenBucket, clock: Callable[[], float] = time.monotonic) -> None:
        self.bucket = bucket
        self._max_uploads = max_uploads
        self._clock = clock
        self._active: list[Upload] = []
        self._usual_bytes_per_s = 0.0
        self._lock = threading.Lock()

    def admit(self, sha256: str, taker: str, num_bytes: int) -> Upload | Busy:
        with self._lock:
            now = self._clock()
            if len(self._active) >= self._max_uploads:
                return _busy("server", self._active, now)
            others = [upload for upload in self._active if self._excludes(upload, taker, now)]
            if others and num_bytes >= _ALONE_BYTES:
                same = [upload for upload in others if upload.sha256 == sha256]
                return _busy("object", same, now) if same else _busy("server", others, now)
            upload = Upload(self, sha256, taker, num_bytes, now)
            self._active.append(upload)
            return upload

    def end(self, upload: Upload) -> None:
        with self._lock:
            self._active.remove(upload)
            if upload.num_sent >= _ALONE_BYTES:
                fading = _FADES * self._usual_bytes_per_s
                self._usual_bytes_per_s = max(fading, upload.bytes_per_s(self._clock()))

    def _excludes(self, upload: Upload, taker: str, now: float) -> bool:
        age_s = now - upload.started
        if upload.taker == taker or upload.num_bytes < _ALONE_BYTES or age_s >= _ALONE_S:
            return False
        return age_s < _YOUNG_S or upload.bytes_per_s(now) >= _MUCH_SLOWER * self._usual_bytes_per_s


def _busy(scope: Literal["object", "server"], uploads: list[Upload], now: float) -> Busy:
    shortest, longest = _RETRY_S
    return Busy(scope, min(longest, max(shortest, min(upload.left_s(now) for upload in uploads))))
