"""Brings mapped weights into memory before they are used: from the page cache at its speed, from the disk in large
reads of several threads, instead of page fault by page fault."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from tickertape.core.ports import Progress

__all__ = ["prefault"]

_PIECE_BYTES: Final = 64 << 20
_READ_BYTES: Final = 4 << 20
_NUM_READERS: Final = 4
_MADV_POPULATE_READ: Final = 22  # Linux 5.14

_log = logging.getLogger(__name__)


def prefault(mappings: Mapping[Path, mmap.mmap], available_bytes: int, report: Callable[[Progress], None]) -> int:
    """Populates the mappings of whole files, in order. Returns how many bytes had to be read from the disk for it.

    `available_bytes` is how much memory there is: when what is not cached yet does not fit, nothing is done, and the
    log says so, since bringing in the end would push out the beginning. Reports the stage "prefault" after each piece;
    an exception of `report` ends it. Raises nothing else: what is not brought in here comes by page faults.
    """
    cached = {path: _resident(mapped) for path, mapped in mappings.items()}
    missing_bytes = sum(pages.count(0) for pages in cached.values()) * mmap.PAGESIZE
    if missing_bytes > available_bytes:
        _log.warning(
            "the weights are not read in advance: %d MiB of them are not in memory, and %d MiB are free",
            missing_bytes >> 20,
            available_bytes >> 20,
        )
        return 0
    done, total = 0, sum(map(len, mappings.values()))
    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="prefault") as readers:
        for path, mapped in mappings.items():
            for start in range(0, len(mapped), _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, len(mapped))
                list(readers.map(lambda read: _read(*read), _cold_reads(path, cached[path], start, end)))
                with suppress(OSError):  # a kernel that does not know it, or pages that will not come
                    mapped.madvise(_MADV_POPULATE_READ, start, end - start)
                done += end - start
                report(Progress("prefault", done, total))
    return missing_bytes


def _cold_reads(path: Path, pages: bytes, start: int, end: int) -> list[tuple[Path, int]]:
    """Where to read, so that every page in [start, end) that is not cached comes."""
    step = _READ_BYTES // mmap.PAGESIZE
    offsets = range(start, end, _READ_BYTES)
    return [(path, at) for at in offsets if 0 in pages[at // mmap.PAGESIZE : at // mmap.PAGESIZE + step]]


def _read(path: Path, offset: int) -> None:
    with suppress(OSError), path.open("rb", buffering=0) as file:
        os.pread(file.fileno(), _READ_BYTES, offset)


def _resident(mapped: mmap.mmap) -> bytes:
    """A byte for each page: not 0 when it is in the page cache. Of files that are not ours the kernel says that all
    are."""
    pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data)):
        pages[:] = 1
    return bytes(pages & 1)
