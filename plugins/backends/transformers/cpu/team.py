"""Threads that work on one thing together.

The library's own operations run on OpenMP threads, which spin for a while when they run out of work, so that the next
operation finds them awake. A second pool beside them would take turns with the spinning ones on the same cores; so
compiled code of ours runs on the very same threads, entered through the OpenMP library's C interface.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

__all__ = ["OpenMPTeam", "Team", "ThreadTeam", "make_team"]

_BODY: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Team(Protocol):
    """`run(body, job)` calls the C function at address `body` with `job` on up to `num_threads` threads at once, the
    caller's among them, and returns when all have returned. One caller at a time; the interpreter lock is released."""

    num_threads: int

    def run(self, body: int, job: int) -> None: ...


class OpenMPTeam:
    """The threads of the OpenMP library that is loaded already. Raises AttributeError or OSError where there is none
    with GNU's interface. OpenMP keeps a pool per calling thread: call from the thread that runs the model."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._parallel = ctypes.CDLL(None).GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None

    def run(self, body: int, job: int) -> None:
        self._parallel(body, job, self.num_threads, 0)


class ThreadTeam:
    """Threads of our own, for where there is no OpenMP to share, or one thread, which is the caller's."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._others = ThreadPoolExecutor(num_threads - 1, "attention") if num_threads > 1 else None

    def run(self, body: int, job: int) -> None:
        function = _BODY(body)
        if self._others is None:
            function(job)
            return
        others = [self._others.submit(function, job) for _ in range(self.num_threads - 1)]
        function(job)
        for other in others:
            other.result()


def make_team(num_threads: int) -> Team:
    if num_threads > 1:
        try:
            return OpenMPTeam(num_threads)
        except (AttributeError, OSError, TypeError):
            pass
    return ThreadTeam(num_threads)
