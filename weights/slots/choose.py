"""From the settings to the slots they mean."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tickertape.core.errors import StartupError
from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.ports import Slots
from tickertape.weights.slots.background import Background
from tickertape.weights.slots.cooldown import Cooldown
from tickertape.weights.slots.files import FileRegister
from tickertape.weights.slots.kubernetes import LeaseObjects, LeaseRegister, ThrottleRegister
from tickertape.weights.slots.lease import LeaseRecord, Terms, boot_clock
from tickertape.weights.slots.leased import LeasedSlots
from tickertape.weights.slots.local import LocalSlots
from tickertape.weights.slots.register import Register
from tickertape.weights.slots.throttle import Pacing, ThrottleRecord, ThrottleWatch

__all__ = ["choose_slots"]

_KUBERNETES: Final = "kubernetes"
_PREFIX: Final = "tickertape-slot"


def choose_slots(
    options: FetchOptions, store_root: Path, *, terms: Terms | None = None, pacing: Pacing | None = None
) -> Slots:
    """Slots as `options.origin_slots` says: Leases in a cluster, files in a directory, or none but a cool-down for
    those who share the store. Raises StartupError when that cannot be."""
    where, count = options.origin_slots, options.num_origin_slots
    terms, pacing = terms or Terms(), pacing or Pacing()
    if where is None:
        return _local(store_root, pacing)
    if where.partition(":")[0] == _KUBERNETES:
        namespace, prefix = _lease_names(where)
        objects = LeaseObjects(namespace, timeout_s=terms.request_timeout_s)
        return _leased(
            [LeaseRegister(objects, f"{prefix}-{index}") for index in range(count)],
            ThrottleRegister(objects, f"{prefix}-cooldown"),
            terms,
            pacing,
            objects.close,
        )
    directory = Path(where)
    if not directory.is_dir():
        # Not made here: a volume that is not mounted would look like one that nobody else uses.
        raise StartupError("--origin-slots: the directory is not there", code="NoSlots")
    unknown = LeaseRecord(holder="?")
    return _leased(
        [FileRegister(directory, f"slot-{n}", empty=LeaseRecord(), unreadable=unknown) for n in range(count)],
        _throttle_file(directory),
        terms,
        pacing,
    )


def _lease_names(where: str) -> tuple[str | None, str]:
    """kubernetes, kubernetes:NAMESPACE/PREFIX; either may be left out."""
    namespace, slash, prefix = where.partition(":")[2].partition("/")
    if where != _KUBERNETES and not slash:
        raise StartupError("origin_slots wants kubernetes:NAMESPACE/PREFIX", code="NoSlots")
    return namespace or None, prefix or _PREFIX


def _leased(
    registers: Sequence[Register[LeaseRecord]],
    throttle: Register[ThrottleRecord],
    terms: Terms,
    pacing: Pacing,
    on_close: Callable[[], None] = lambda: None,
) -> LeasedSlots:
    rng = random.SystemRandom().random
    watch = ThrottleWatch(len(registers), pacing, rng)
    return LeasedSlots(
        registers,
        Cooldown(throttle, watch, boot_clock, fresh_s=terms.retry_s),
        holder=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        terms=terms,
        keeper=Background(),
        clock=boot_clock,
        wall_us=lambda: time.time_ns() // 1000,
        rng=rng,
        on_close=on_close,
    )


def _local(store_root: Path, pacing: Pacing) -> LocalSlots:
    rng = random.SystemRandom().random
    cooldown = Cooldown(
        _throttle_file(store_root / "origin", make=True),
        ThrottleWatch(1, pacing, rng),
        boot_clock,
        fresh_s=Terms().retry_s,
    )
    return LocalSlots(cooldown, clock=boot_clock, rng=rng)


def _throttle_file(directory: Path, *, make: bool = False) -> FileRegister[ThrottleRecord]:
    return FileRegister(directory, "cooldown", empty=ThrottleRecord(), unreadable=ThrottleRecord(), make=make)
