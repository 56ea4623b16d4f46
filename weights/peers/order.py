"""Which file to fetch next, so that nodes which fetch the same model soon have something to give each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from tickertape.core.sources import FileEntry
from tickertape.weights.fetch.ports import Offer

__all__ = ["rarest_first"]


def rarest_first(entries: Iterable[FileEntry], offers: Mapping[str, Offer], salt: str) -> list[FileEntry]:
    """Those that peers offer, the rarest first; equals in an order that differs with `salt`, which is the node's own;
    last those whose holders are busy. Ask anew for each file: what is rare changes by the second.

    The rarest-first rule of BitTorrent (Cohen 2003): what one node alone has, it can hand to one other at full speed or
    to all of them at a fraction each; in the first case the second node soon hands it on too.
    """

    def rank(entry: FileEntry) -> tuple[bool, int, int, bytes]:
        sha256 = entry.sha256 or ""
        offer = offers[sha256]
        lot = hashlib.sha256(f"{salt}:{sha256}".encode()).digest()
        return not offer.is_free, offer.num_whole + offer.num_partial, offer.num_whole, lot

    return sorted((entry for entry in entries if entry.sha256 in offers), key=rank)
