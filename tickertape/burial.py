"""Waiting for a child's end without a thread."""

from __future__ import annotations

import asyncio
import os
import subprocess

__all__ = ["wait_for_exit"]


async def wait_for_exit(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Returns when a child of ours has ended, or after `timeout_s`."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout_s)
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.poll()
