"""Blocks are promised by arithmetic that adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.core.errors import StartupError
from tickertape.core.memory import CacheGroup, Limits, MemoryPlan, fit_blocks, max_blocks_per_sequence, window_blocks

LIMITS = Limits(max_model_len=1000, max_num_seqs=4, max_batch_tokens=64, block_tokens=16)


def plan(*groups: CacheGroup) -> MemoryPlan:
    return MemoryPlan(0, 0, 0, groups)


FULL = CacheGroup("full", None, 16, 1000)
SLIDING = CacheGroup("sliding", 100, 16, 500)


@given(st.integers(3_000, 5_000_000))
def test_what_is_promised_fits_and_one_more_does_not(kv_cache_bytes: int) -> None:
    blocks = fit_blocks(plan(FULL, SLIDING), LIMITS, kv_cache_bytes)
    assert sum(n * g.block_bytes for n, g in zip(blocks, (FULL, SLIDING), strict=True)) <= kv_cache_bytes
    most = LIMITS.max_num_seqs * LIMITS.max_model_len // LIMITS.block_tokens
    if blocks[0] - 1 < most:
        assert (blocks[0] + 1) * 1000 + (blocks[1] + 1) * 500 > kv_cache_bytes


def test_a_sliding_group_never_takes_more_than_its_windows() -> None:
    blocks = fit_blocks(plan(FULL, SLIDING), LIMITS, 10**9)
    assert blocks[0] == 4 * 1000 // 16 + 1
    assert blocks[1] == 4 * window_blocks(SLIDING, LIMITS) + 1
    assert window_blocks(SLIDING, LIMITS) == -(-164 // 16) + 1
    assert window_blocks(FULL, LIMITS) == max_blocks_per_sequence(LIMITS) == 63


def test_too_little_memory_is_refused_with_the_sum() -> None:
    with pytest.raises(StartupError, match=r"at least 3000 bytes .* 2999 bytes are left") as caught:
        fit_blocks(plan(FULL, SLIDING), LIMITS, 2999)
    assert caught.value.code == "InsufficientMemory"
