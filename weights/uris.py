"""URIs as they may be shown and kept: a password or a signed query in one is somebody's secret."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

__all__ = ["public"]


def public(uri: str) -> str:
    """Without user and password, and without a query, which may be a signature."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # not a URL; what looks like a password in it may be one
        return f"{uri.partition('://')[0]}://..."
    return uri if not parts.netloc else urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
