"""Where log records go and how they look: standard error, one line each; JSON unless a person is looking."""

from __future__ import annotations

import logging
import sys
from typing import Final

from tickertape.api.logs import JsonFormatter

__all__ = ["configure_logs"]

_OUTSPOKEN: Final = ("httpcore", "httpcore2", "httpx", "httpx2", "urllib3")
"""Libraries that log every request with its URL, in which a signature may stand."""


class _OfProcess(logging.Filter):
    """Adds which process speaks: several share one standard error."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        record.fields = {"process": self._process, **getattr(record, "fields", {})}
        return True


def configure_logs(level: str, process: str) -> None:
    """Sends every logger's records to standard error. Called once, by whoever owns the process."""
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(logging.Formatter(f"%(asctime)s {process}: %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonFormatter())
        handler.addFilter(_OfProcess(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _OUTSPOKEN:
        logging.getLogger(name).setLevel(logging.WARNING)
