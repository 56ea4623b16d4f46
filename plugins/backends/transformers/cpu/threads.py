"""How many threads a worker computes on: one place sets it.

One pool serves everything. Torch, MKL and oneDNN share the OpenMP threads of the thread that calls them, and our
kernels enter the same ones (see team). So all of it must be called from one thread, the one that `use_threads` was
called on: each calling thread would have a pool of its own, and pools that spin beside each other cost more than they
give. Seen on 2 busy cores, attention between two linears, fastest call and lower quartile in us: the shared pool 253
and 307, a pool of our own 293 and 496, numba's workqueue 377 and 543, one thread 443 and 479.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["available_cores", "use_threads"]

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")


def available_cores(cpu_max: Path = _CGROUP_V2) -> int:
    """Cores this process may run on: its affinity, and the quota of its control group, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def use_threads(num_threads: int | None = None) -> int:
    """Sets what the calling thread computes on from now on, by default all cores it may use; returns the count."""
    count = num_threads or available_cores()
    torch.set_num_threads(count)
    return count
