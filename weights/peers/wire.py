"""The protocol of peers, in names. HTTP/1.1 with GET and HEAD:

    /weights                  what is held: an `Inventory`, with an ETag of its own
    /weights/<sha256>         the object; a single Range; ETag is its quoted sha256
    /weights/<sha256>/chunks  the sha256 of each CHUNK_BYTES of an object that is held whole, a JSON list

401 without the token; 404 for what is not held; 416 for a range that is not held; 503 with Retry-After when busy.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from tickertape.weights.peers.catalog import Partial

__all__ = [
    "BUSY",
    "MAX_HEAD_BYTES",
    "RETRY_AFTER_MS",
    "STORE",
    "TARGET",
    "Inventory",
    "authorization",
    "etag",
]

TARGET: Final = re.compile(r"/weights(?:/(?P<sha256>[0-9a-f]{64})(?P<chunks>/chunks)?)?", re.ASCII)
MAX_HEAD_BYTES: Final = 16 << 10

STORE: Final = "Tickertape-Store"
"""On every request and answer: which store the sender serves from or fetches into."""

BUSY: Final = "Tickertape-Busy"
"""On a 503: `object` when only this object is in use, `server` when nothing can be had."""

RETRY_AFTER_MS: Final = "Retry-After-Ms"
"""Beside Retry-After, whose unit is too coarse for transfers that take milliseconds."""


class Inventory(Struct, frozen=True):
    """What a store can give: whole objects as sha256 -> size in bytes, and what of others is verified."""

    store: str
    whole: dict[str, int]
    partial: tuple[Partial, ...] = ()


def etag(sha256: str) -> str:
    return f'"{sha256}"'


def authorization(token: str) -> str:
    return f"Bearer {token}"
