"""Threads that take work as there is some, until they are sent home."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Crew", "Task"]

Task = Callable[[], None]


class Crew:
    """`lock` guards whatever the work is chosen by. `failed` hears what a task raised and did not see to itself."""

    def __init__(self, lock: threading.RLock, failed: Callable[[BaseException], None]) -> None:
        self.stopping = threading.Event()
        self._lock = lock
        self._failed = failed
        self._wanted: dict[str, threading.Condition] = {}
        self._threads: list[threading.Thread] = []

    def hire(self, kind: str, number: int, choose: Callable[[], Task | None]) -> None:
        """So many threads for a kind of work. `choose` is called under the lock; None: there is nothing to do, ask
        again after the next `call`."""
        self._wanted[kind] = wanted = threading.Condition(self._lock)
        for index in range(number):
            thread = threading.Thread(target=self._work, args=(wanted, choose), name=f"fetch-{kind}-{index}")
            thread.start()
            self._threads.append(thread)

    def call(self, *kinds: str) -> None:
        """There may be work of these kinds. Under the lock. Wakes one thread of each; one that finds work wakes the
        next before it begins, so that no more wake in vain than one."""
        for kind in kinds:
            if (wanted := self._wanted.get(kind)) is not None:
                wanted.notify()

    def stop(self) -> None:
        """Tasks are to end; nobody takes another. Does not wait."""
        with self._lock:
            self.stopping.set()
            for wanted in self._wanted.values():
                wanted.notify_all()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self, wanted: threading.Condition, choose: Callable[[], Task | None]) -> None:
        while True:
            with self._lock:
                while True:
                    if self.stopping.is_set():
                        return
                    if (task := choose()) is not None:
                        wanted.notify()
                        break
                    wanted.wait()
            try:
                task()
            except BaseException as error:
                self._failed(error)
