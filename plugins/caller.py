"""What `authenticate` is asked about."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["Caller"]


class Caller(Struct, frozen=True, kw_only=True):
    """Who calls, as far as it shows: header names are in lower case, a header that came twice is joined with ", ";
    `client` is the peer's address, a proxy's where there is one."""

    method: str
    path: str
    headers: Mapping[str, str]
    client: str = ""
