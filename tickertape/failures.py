"""How the front speaks of what ended it."""

from __future__ import annotations

import logging
import sys

from tickertape.core.errors import PluginError, StartupError, TickertapeError

__all__ = ["complain", "first_of", "reason_of"]

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


def complain(error: BaseException) -> None:
    """One line for a person. What is not of the error tree is a bug of ours, and is logged whole."""
    if isinstance(error, TickertapeError):
        text = error.message
    else:
        _log.error("the server failed", exc_info=error)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"tickertape: {text}", file=sys.stderr, flush=True)
