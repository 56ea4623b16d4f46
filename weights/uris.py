"""URIs as they may be shown and kept: a password or a signed query in one is somebody's secret."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

__all__ = ["public"]


def public(uri: str) -> str:
    """Without user and password, and without a query, which may be a signature."""
    parts = urlsplit(uri)
    return uri if not parts.netloc else urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
