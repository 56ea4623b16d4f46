"""Child processes of the front, each on the other end of a Unix socket. Standard library only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Child", "adopt_socket", "describe_exit", "die_with_parent", "start_child"]

_PR_SET_PDEATHSIG = 1


class Child(NamedTuple):
    """A child and our end of its socket. Closing the socket asks it to end."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def kill(self) -> None:
        """Ends its whole group at once; no error when it is gone already."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.socket.close()
        self.process.wait()


StartChild = Callable[[str], Child]


def start_child(module: str) -> Child:
    """Runs `python -m module FD`. Its standard output is our standard error: ours belongs to the JSON line. It leads
    a process group of its own, so that the terminal's Ctrl-C reaches the front alone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = subprocess.Popen(
            # -P: a file named queue.py in the working directory is not ours to import.
            [sys.executable, "-P", "-m", module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            process_group=0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Child(process, ours)


def adopt_socket(fd: int) -> socket.socket:
    """In the child: our end, not inherited by children of its own."""
    adopted = socket.socket(fileno=fd)
    adopted.set_inheritable(False)
    return adopted


def die_with_parent() -> None:
    """In the child: the kernel kills us when the front goes, however it goes. The socket's end says so too; this also
    holds while a step computes and nobody reads."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def describe_exit(returncode: int) -> str:
    """How a process ended, for people."""
    if returncode < 0:
        try:
            return f"was killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"was killed by signal {-returncode}"
    return f"exited with status {returncode}"
