"""What a fetch works with, handed in by whoever composes the process."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tickertape.core.errors import StartupError
from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.clock import Clock, SystemClock
from tickertape.weights.fetch.ports import NoPeers, Peers, Slots
from tickertape.weights.fetch.underway import Underway
from tickertape.weights.ledger import Ledger

__all__ = ["Fetching", "MakeRoom", "check_room"]

MakeRoom = Callable[[int], None]
"""Sees to it that so many bytes can be written to the store and what is kept in reserve is left. Raises StartupError,
code NoSpace."""


@dataclass(frozen=True)
class Fetching:
    """`underway` shows peers what is being fetched; `rng` gives numbers in [0, 1). They outlive the fetch: whoever made
    slots and peers closes them."""

    slots: Slots
    make_room: MakeRoom
    peers: Peers = field(default_factory=NoPeers)
    ledger: Ledger = field(default_factory=Ledger)
    options: FetchOptions = field(default_factory=FetchOptions)
    underway: Underway = field(default_factory=Underway)
    clock: Clock = field(default_factory=SystemClock)
    rng: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)

    @classmethod
    def alone(cls, root: Path) -> Fetching:
        """For a store that nobody shares but this node: no peers, and a cool-down among those who use the store."""
        from tickertape.weights.slots.choose import choose_slots

        options = FetchOptions()
        return cls(choose_slots(options, root), check_room(root, options.store_reserve_bytes))


def check_room(root: Path, reserve_bytes: int) -> MakeRoom:
    """Makes no room, but says when there is none."""

    def check(num_bytes: int) -> None:
        path = root
        while not path.exists():
            path = path.parent
        stat = os.statvfs(path)
        free_bytes = stat.f_bavail * stat.f_frsize
        if num_bytes and free_bytes < num_bytes + reserve_bytes:
            raise StartupError(
                f"no space in the weights store: {num_bytes >> 20} MiB are to come and {reserve_bytes >> 20} MiB to "
                f"stay free, {free_bytes >> 20} MiB are left",
                code="NoSpace",
            )

    return check
