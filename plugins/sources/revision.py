"""A name for a state of files, for origins that have none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from tickertape.plugins import FileEntry

__all__ = ["revision_of"]


def revision_of(files: Sequence[FileEntry]) -> str:
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()
