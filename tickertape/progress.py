"""Shows how loading gets on: bars on a terminal, else a log line now and then."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TextIO

from tickertape.core.ports import Progress

__all__ = ["Meter", "ProgressBars", "ProgressLog", "ProgressView"]

_LINE_EVERY_S: Final = 5.0
_MARK_S: Final = 0.5
_WINDOW_S: Final = 10.0

_log = logging.getLogger(__name__)


class ProgressView(Protocol):
    def show(self, model: str, progress: Progress) -> None: ...
    def close(self) -> None:
        """No more will come. May be called twice."""
        ...


class Meter:
    """Rate and time left of the stage that is going on, by what the last seconds brought: a start that was slow, or a
    pause, does not count for ever."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stage = ""
        self._marks: deque[tuple[float, int]] = deque()  # (time, done), at least _MARK_S apart

    def measure(self, progress: Progress) -> Mapping[str, Any]:
        """What /readyz and /startupz show of it."""
        now, done = self._clock(), progress.done
        if progress.stage != self._stage or (self._marks and done < self._marks[-1][1]):
            self._stage = progress.stage
            self._marks.clear()
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        left, eta_s = progress.total - done, progress.eta_s
        if eta_s is None and rate > 0 and left >= 0 and now - since >= _MARK_S:
            eta_s = left / rate
        return {
            "stage": progress.stage,
            "done": done,
            "total": progress.total,
            "unit": progress.unit,
            "rate": round(rate, 1),
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "source": progress.source,
            "detail": progress.detail,
            "slot": progress.has_slot,
            "peers": progress.num_peers,
        }


class ProgressLog:
    """One line when a stage begins and ends, and every few seconds between."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[str, tuple[str, bool, float]] = {}

    def show(self, model: str, progress: Progress) -> None:
        is_over = 0 < progress.total <= progress.done
        stage, was_over, at = self._last.get(model, ("", False, 0.0))
        now = self._clock()
        if (stage, was_over) == (progress.stage, is_over) and now - at < _LINE_EVERY_S:
            return
        self._last[model] = (progress.stage, is_over, now)
        _log.info("%s: %s %s", model, progress.stage, amount(progress))

    def close(self) -> None:
        self._last.clear()


class ProgressBars:
    """One bar per model and stage, on `stream`."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._open = False

    def show(self, model: str, progress: Progress) -> None:
        if not self._open:
            self._open = True
            self._bars.start()
        key = (model, progress.stage)
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(f"{progress.stage} {model}", amount="")
        self._bars.update(
            self._tasks[key], completed=progress.done, total=progress.total or None, amount=amount(progress)
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            self._bars.stop()
            self._tasks.clear()


def amount(progress: Progress) -> str:
    """Done and total, as far as they are known, for people; where it comes from, and what else there is to say."""
    done, total = progress.done, progress.total
    if progress.unit == "bytes":
        text = f"{done / (1 << 20):.1f}/{total / (1 << 20):.1f} MiB" if total else ""
    else:
        text = f"{done}{f'/{total}' if total else ''} {progress.unit}"
    more = (text, f"from {progress.source}" if progress.source else "", progress.detail)
    return ", ".join(part for part in more if part)
