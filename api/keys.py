"""API keys: kept as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from tickertape.core.errors import InvalidApiKey

__all__ = ["Keys"]

_SCHEME: Final = b"bearer "
_MAX_KEY_BYTES: Final = 4096
_DIGEST_PREFIX: Final = "sha256:"


class Keys:
    """The keys that open the server; none: everybody is let in. One is written as it is sent, or as `sha256:` and the
    hexadecimal digest of that. They may be replaced while requests are answered; used on one event loop."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def replace(self, keys: Iterable[str]) -> None:
        """From the next request on these count and no others. Raises ValueError, and changes nothing, for a key that
        is empty or no digest."""
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The tenant that the request's `authorization` header (`Bearer KEY`) stands for: a digest of its key, "" when
        no keys are set. Raises InvalidApiKey."""
        if not self._digests:
            return ""
        found = [value for name, value in headers if name == b"authorization"]
        if len(found) != 1:
            raise InvalidApiKey("No API key was sent; send one as 'Authorization: Bearer KEY'" if not found
                                else "More than one Authorization header was sent")  # fmt: skip
        value = found[0]
        if value[: len(_SCHEME)].lower() != _SCHEME or len(value) > _MAX_KEY_BYTES:
            raise InvalidApiKey("The Authorization header must be 'Bearer KEY'")
        digest = hashlib.sha256(value[len(_SCHEME) :].strip()).digest()
        # Every key is compared, so that the time tells neither how many match nor which.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise InvalidApiKey("The API key is not valid")
        return digest.hex()[:16]


def _digest(key: str) -> bytes:
    if not key:
        raise ValueError("a key is empty")
    if not key.startswith(_DIGEST_PREFIX):
        return hashlib.sha256(key.encode()).digest()
    digest = bytes.fromhex(key.removeprefix(_DIGEST_PREFIX))
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"after {_DIGEST_PREFIX} come 64 hexadecimal digits")
    return digest
