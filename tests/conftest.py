"""What all tests share."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Half a million objects of the imported libraries are here to stay: the collector need not look at them after
    each test."""
    gc.collect()
    gc.freeze()
