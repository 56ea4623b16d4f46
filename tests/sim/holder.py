"""One server's part in the contest for slots, without the server: takes a slot, reads from the origin under it, and
says what it does, a JSON line each, until it is killed.

    python tests/sim/holder.py SLOTS NUM_SLOTS LEASE_S URL
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.ports import Slot, SlotLost
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.slots.lease import Terms

BUFFER_BYTES: Final = 64 << 10


def main(directory: str, num_slots: int, lease_s: float, url: str) -> None:
    options = FetchOptions(origin_slots=directory, num_origin_slots=num_slots)
    terms = Terms(lease_s=lease_s, renew_deadline_s=lease_s * 2 / 3, retry_s=lease_s / 8)
    slots = choose_slots(options, Path(directory), terms=terms)
    while True:
        slot = slots.acquire()
        if slot is None:
            time.sleep(slots.retry_s)
            continue
        _say("acquired")
        try:
            _read(slot, url)
        except SlotLost:
            _say("lost")
        finally:
            slot.release()


def _read(slot: Slot, url: str) -> None:
    """Until the slot is lost: requests, and buffers as they come."""
    where = urlsplit(url)
    while True:
        slot.check()
        _say("request")
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        try:
            connection.request("GET", where.path)
            answer = connection.getresponse()
            while data := answer.read1(BUFFER_BYTES):
                try:
                    slot.check()
                except SlotLost:
                    _say("unchecked", len(data))
                    raise
                _say("read", len(data))
        finally:
            connection.close()


def _say(what: str, num_bytes: int = 0) -> None:
    sys.stdout.write(json.dumps({"at_s": time.monotonic(), "what": what, "num_bytes": num_bytes}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
