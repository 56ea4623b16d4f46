"""What the sampler holds as wide as the vocabulary, or as long as a text, goes when its slot is closed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tickertape.core.batch import Opened
from tickertape.core.request import SamplingParams, pack_tokens
from tickertape.core.sampling import Sampler


@pytest.mark.parametrize(
    "kind", [{"logit_bias": ((1, 1.0),)}, {"presence_penalty": 1.0}, {"bad_tokens": ((1, 2),)}], ids=str
)
@pytest.mark.parametrize("ends", ["closed", "replaced", "resident"])
def test_what_a_slot_held_goes_with_its_sequence(kind: dict[str, Any], ends: str) -> None:
    sampler = Sampler(np, 32, 50_000)
    history = pack_tokens(list(range(10_000)))
    tracemalloc.start()
    try:
        for slot in range(32):
            sampler.open(Opened(slot, SamplingParams(max_tokens=1, seed=0, **kind), history, 10_000))
            if ends == "closed":
                sampler.close(slot)
            if ends == "replaced":
                sampler.open(Opened(slot, SamplingParams(max_tokens=1, seed=0), history, 10_000))
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (num_bytes >= 1_500_000) == (
        ends == "resident"
    )  # a slot holds 80 kB or more; four wide rows are kept for reuse
