"""How the front speaks of what ended it."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

from tickertape.core.errors import PluginError, StartupError, TickertapeError

__all__ = ["complain", "first_of", "note_termination", "reason_of"]

_log = logging.getLogger(__name__)


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def reason_of(error: BaseException) -> str:
    """The word that /readyz shows: a StartupError's code is made for it."""
    if isinstance(error, StartupError):
        return error.code
    return "PluginFailed" if isinstance(error, PluginError) else "WorkerFailed"


def complain(error: BaseException, termination_log: Path | None = None) -> None:
    """One line for a person, and with its reason for whoever looks after the container. What is not of the error tree
    is a bug of ours, and is logged whole."""
    if isinstance(error, TickertapeError):
        text = error.message
    else:
        _log.error("the server failed", exc_info=error)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"tickertape: {text}", file=sys.stderr, flush=True)
    note_termination(termination_log, f"{reason_of(error)}: {text}")


def note_termination(termination_log: Path | None, line: str) -> None:
    """Never fails: the line was said elsewhere too."""
    if termination_log is not None:
        with suppress(OSError):
            termination_log.write_text(f"{line}\n")
