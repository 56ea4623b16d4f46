"""A process that reads under a slot for as long as it lives, and writes down when: `python -m tests.sim.slot_holder`.

Each line says what happened, when (on the clock that all processes of a machine share), on which slot, in which epoch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from tests.sim.slot_log import TERMS, Event
from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.slots.lease import boot_clock
from tickertape.weights.slots.leased import LeasedSlot

_BUFFER_S = 0.002


def main(where: str, num_slots: int) -> None:
    options = FetchOptions(origin_slots=where, num_origin_slots=num_slots)
    slots = choose_slots(options, Path("/nowhere"), terms=TERMS)
    while True:
        slot = slots.acquire()
        if slot is None:
            time.sleep(slots.retry_s)
            continue
        assert isinstance(slot, LeasedSlot)
        _note("acquired", slot)
        try:
            while True:
                slot.check()
                time.sleep(_BUFFER_S)  # here the origin's bytes come
                _note("read", slot)
        except SlotLost:
            _note("lost", slot)
            slot.release()


def _note(what: str, slot: LeasedSlot) -> None:
    event = Event(what, boot_clock(), slot.index, slot.epoch)
    os.write(1, msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
