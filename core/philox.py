"""Randomness without state: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, 2011) over the array API.

The same counter and key give the same bits on every namespace and device, in any batch and on any worker.
"""

from __future__ import annotations

from typing import Any, Final

from tickertape.core.batch import Array

__all__ = ["philox4x32", "uniform"]

_LOW_32: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS: Final = 10

Words4 = tuple[Array, Array, Array, Array]


def philox4x32(xp: Any, counter: Words4, key: tuple[Array, Array]) -> Words4:
    """Four random 32-bit words per lane.

    All words are int64 arrays [n] (or broadcastable to it) that hold values in [0, 2**32). The 64-bit products
    overflow int64: two's complement keeps their bits, and the masks cut the sign extension off.
    """
    # 0-d arrays, because numpy takes twice as long to combine an array with a Python int.
    low_32, shift = xp.asarray(_LOW_32), xp.asarray(32)
    multiplier_0, multiplier_1 = (xp.asarray(value) for value in _MULTIPLIERS)
    weyl_0, weyl_1 = (xp.asarray(value) for value in _WEYL)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_0, product_1 = c0 * multiplier_0, c2 * multiplier_1
        c0 = (product_1 >> shift) & low_32 ^ c1 ^ k0
        c2 = (product_0 >> shift) & low_32 ^ c3 ^ k1
        c1, c3 = product_1 & low_32, product_0 & low_32
        k0, k1 = (k0 + weyl_0) & low_32, (k1 + weyl_1) & low_32
    return c0, c1, c2, c3


def uniform(xp: Any, *, seed_low: Array, seed_high: Array, position: Array, choice: Array, lane: Array) -> Array:
    """One float64 per lane, strictly between 0 and 1: the middles of 2**52 equal intervals.

    int64 arrays [n]: `seed_low` and `seed_high` are the halves of the 64-bit seed (the key); position, choice and
    lane are below 2**32 (the counter).
    """
    high, low, _, _ = philox4x32(xp, (position, choice, lane, xp.zeros_like(lane)), (seed_low, seed_high))
    return (xp.astype((high << 20) | (low >> 12), xp.float64) + 0.5) * 2.0**-52
