"""Waiting in the thread that reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tickertape.core.errors import OriginError
from tickertape.weights.fetch.clock import Clock

__all__ = ["ROOM_EVERY_S", "answer_within", "wait_until"]

ROOM_EVERY_S: Final = 5.0
"""How often a full disk is looked at again."""

_NAP_S: Final = 0.5

Answer = TypeVar("Answer")


def wait_until(moment: float, clock: Clock, tell: Callable[[], None]) -> None:
    """Calls `tell` now and then; what it raises ends the wait."""
    never = threading.Event()
    while (now := clock.now()) < moment:
        tell()
        clock.sleep_until(min(moment, now + _NAP_S), never)


def answer_within(
    limit_s: float, ask: Callable[[], Answer], clock: Clock, tell: Callable[[], None], what: str
) -> Answer:
    """What `ask` returns or raises, in a thread of its own. Calls `tell` now and then, whose errors end the wait.
    Raises OriginError when `what` does not answer in time: then the thread is left to its fate, and does not keep the
    process."""
    found = threading.Condition()
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)
        with found:
            found.notify()

    deadline = clock.now() + limit_s
    threading.Thread(target=run, name="ask-origin", daemon=True).start()
    while True:
        with found:
            if not answers and not errors:
                clock.wait(found, _NAP_S, idle=False)
        if errors:
            raise errors[0]
        if answers:
            return answers[0]
        tell()
        if clock.now() >= deadline:
            raise OriginError(f"{what}: no whole answer in {limit_s:g} s")
