"""Memory is promised before it is taken: what a runner will need, and how many blocks fit beside it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tickertape.core.errors import StartupError

__all__ = ["CacheGroup", "Limits", "MemoryPlan", "fit_blocks", "max_blocks_per_sequence", "window_blocks"]


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds one engine works within. `max_model_len` counts prompt and output tokens of one sequence."""

    max_model_len: int
    max_num_seqs: int
    max_batch_tokens: int
    block_tokens: int


class CacheGroup(Struct, frozen=True):
    """Layers that share one block table. `window` is the sliding window in tokens (a query at q sees k > q - window).
    `block_bytes` is what one block costs over all layers of the group."""

    kind: Literal["full", "sliding", "state"]
    window: int | None
    block_tokens: int
    block_bytes: int


class MemoryPlan(Struct, frozen=True):
    """What a runner will take: shared (mapped) weights, private copies, scratch space, and its cache groups."""

    weight_bytes: int
    private_bytes: int
    workspace_bytes: int
    groups: tuple[CacheGroup, ...]


def max_blocks_per_sequence(limits: Limits) -> int:
    """Width of a block table."""
    return -(-limits.max_model_len // limits.block_tokens)


def window_blocks(group: CacheGroup, limits: Limits) -> int:
    """The most blocks one sequence holds in this group at once."""
    everything = max_blocks_per_sequence(limits)
    if group.window is None:
        return everything
    span = group.window + min(limits.max_batch_tokens, limits.max_model_len)
    return min(everything, -(-span // group.block_tokens) + 1)


def fit_blocks(plan: MemoryPlan, limits: Limits, kv_cache_bytes: int) -> tuple[int, ...]:
    """Blocks per group (the null block included) so that all groups hold as many tokens as the bytes allow.

    Full groups grow with the tokens held; a sliding group never needs more than its window for every sequence.
    Raises StartupError, with the sum, when not even one sequence of `max_batch_tokens` or one block fits.
    """

    def blocks(num_tokens: int) -> tuple[int, ...]:
        full = -(-num_tokens // limits.block_tokens)
        return tuple(min(full, limits.max_num_seqs * window_blocks(g, limits)) + 1 for g in plan.groups)

    def cost(num_tokens: int) -> int:
        return sum(n * g.block_bytes for n, g in zip(blocks(num_tokens), plan.groups, strict=True))

    low, high = 0, limits.max_num_seqs * limits.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= kv_cache_bytes else (low, middle - 1)
    if low < limits.block_tokens:
        needed = cost(limits.block_tokens)
        raise StartupError(
            f"the KV cache needs at least {needed} bytes for one block per group, {kv_cache_bytes} bytes are left",
            code="InsufficientMemory",
        )
    return blocks(low - low % limits.block_tokens)
