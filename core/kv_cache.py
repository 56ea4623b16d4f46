"""The KV memory of all sequences: one block table per cache group, prefix hits, windows that slide.

`BlockPool` knows blocks; here they become the memory of sequences. Tables are written in place, one line per slot:
appended to while a sequence grows, set to the null block behind a sliding window, overwritten when the slot has a
new tenant. Every group has the same `block_tokens`, so block i of a sequence holds the same positions in each.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from tickertape.core.blocks import NULL_BLOCK, BlockPool, hash_block
from tickertape.core.errors import StartupError
from tickertape.core.memory import CacheGroup, Limits, max_blocks_per_sequence
from tickertape.core.sequence import Sequence

__all__ = ["KVCache"]


class KVCache:
    """Owned by the scheduler's thread. `num_blocks` per group, the null block included."""

    def __init__(
        self, limits: Limits, groups: Seq[CacheGroup], num_blocks: Seq[int], *, prefix_cache: bool = True
    ) -> None:
        for group in groups:
            if group.kind == "state":
                raise StartupError("recurrent state cannot be paged yet", code="UnsupportedCache")
            if group.block_tokens != limits.block_tokens:
                raise StartupError(
                    f"a cache group has blocks of {group.block_tokens} tokens, not of {limits.block_tokens}",
                    code="UnsupportedCache",
                )
        self.block_tokens = limits.block_tokens
        self.pools = tuple(BlockPool(count) for count in num_blocks)
        width = max_blocks_per_sequence(limits)
        self.tables = tuple(np.zeros((limits.max_num_seqs, width), dtype=np.int32) for _ in groups)
        self._windows = tuple(group.window for group in groups)
        self._slides = any(window is not None for window in self._windows)
        self._prefix_cache = prefix_cache
        self._computing: dict[bytes, Sequence] = {}

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone. A sliding group bounds the step, not the length."""
        full = [p.num_blocks - 1 for p, w in zip(self.pools, self._windows, strict=True) if w is None]
        return min(full) * self.block_tokens if full else self.tables[0].shape[1] * self.block_tokens

    # -- prefix hits ---------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> tuple[int, bytes | None]:
        """(full blocks of `seq` that are cached in every group, digest of the next one if somebody computes it now).

        The last known id is never covered: its logits are wanted. A prompt that is scored hits nothing.
        """
        if not self._prefix_cache or seq.wants_scores:
            return 0, None
        most = (len(seq.tokens) - 1) // self.block_tokens
        self._hash(seq, most)
        hit = self._longest_hit(seq.hashes, most)
        busy = hit < most and seq.hashes[hit] in self._computing
        return hit, seq.hashes[hit] if busy else None

    def _longest_hit(self, hashes: list[bytes], most: int) -> int:
        hit = most
        for pool, window in zip(self.pools, self._windows, strict=True):
            if window is None:
                hit = next((i for i in range(hit) if pool.find(hashes[i]) is None), hit)
        if not self._slides:
            return hit
        # A sliding group needs only the blocks its window reaches back to: take the longest prefix all groups can give.
        while hit and not all(
            all(pool.find(hashes[i]) is not None for i in range(self._first_visible(hit * self.block_tokens, w), hit))
            for pool, w in zip(self.pools, self._windows, strict=True)
            if w is not None
        ):
            hit -= 1
        return hit

    def _first_visible(self, position: int, window: int | None) -> int:
        """The first block that a query at `position` can see into."""
        return 0 if window is None else max(0, position - window + 1) // self.block_tokens

    def _hash(self, seq: Sequence, count: int) -> None:
        hashes, size = seq.hashes, self.block_tokens
        for i in range(len(hashes), count):
            parent = hashes[-1] if hashes else seq.parent_hash
            hashes.append(hash_block(parent, seq.tokens[i * size : (i + 1) * size]))

    # -- the life of a sequence's memory -------------------------------------------------------------------------

    def admit(self, seq: Sequence, slot: int, hit: int, num_tokens: int, spare: int) -> bool:
        """Gives `seq` its `hit` cached blocks and room for a first step of `num_tokens` beyond them.

        A full group promises room for everything known of the sequence at once; a sliding group gives what the step
        needs. False, and nothing changed, when a pool would keep less than `spare` free blocks.
        """
        hits: list[list[int]] = []
        for pool, window in zip(self.pools, self._windows, strict=True):
            first = self._first_visible(hit * self.block_tokens, window)
            found = [NULL_BLOCK] * first + [pool.find(seq.hashes[i]) or NULL_BLOCK for i in range(first, hit)]
            revived = sum(1 for block in found if block != NULL_BLOCK and not pool.is_held(block))
            wanted = self._blocks(len(seq.tokens) if window is None else hit * self.block_tokens + num_tokens) - hit
            if pool.num_free - revived < wanted + spare:
                return False
            hits.append(found)
        for group, found in enumerate(hits):
            self.pools[group].share(found)
            seq.blocks[group][:] = found
            self.tables[group][slot, :hit] = found
        seq.slot = slot
        seq.num_scheduled = seq.num_computed = hit * self.block_tokens
        seq.num_published = hit
        seq.capacity_tokens = hit * self.block_tokens
        promised = self.extend(seq, seq.num_scheduled + num_tokens, len(seq.tokens))
        assert promised, "room was counted before it was taken"
        if self._prefix_cache:
            whole = len(seq.tokens) // self.block_tokens
            self._hash(seq, whole)
            for digest in seq.hashes[hit:whole]:
                self._computing.setdefault(digest, seq)
        return True

    def extend(self, seq: Sequence, num_tokens: int, promise_tokens: int = 0) -> bool:
        """Room for `num_tokens` positions in every group (for `promise_tokens` in full ones). False, and nothing
        changed, when a pool is short."""
        missing = []
        for group, window in enumerate(self._windows):
            reach = max(num_tokens, promise_tokens) if window is None else num_tokens
            missing.append(max(0, self._blocks(reach) - len(seq.blocks[group])))
            if self.pools[group].num_free < missing[group]:
                return False
        for group, count in enumerate(missing):
            if count:
                held = seq.blocks[group]
                taken = self.pools[group].take(count)
                self.tables[group][seq.slot, len(held) : len(held) + count] = taken
                held.extend(taken)
        seq.capacity_tokens = min(len(held) for held in seq.blocks) * self.block_tokens
        return True

    def slide(self, seq: Sequence) -> None:
        """Returns the blocks that the next position to be scheduled, and all after it, cannot see."""
        if not self._slides:
            return
        for group, window in enumerate(self._windows):
            first = self._first_visible(seq.num_scheduled, window)
            held = seq.blocks[group]
            passed = first - 1
            while passed >= 0 and held[passed] != NULL_BLOCK:
                passed -= 1
            gone = held[passed + 1 : first]
            if gone:
                self.pools[group].release(gone)
                held[passed + 1 : first] = [NULL_BLOCK] * len(gone)
                self.tables[group][seq.slot, passed + 1 : first] = NULL_BLOCK

    def publish(self, seq: Sequence) -> list[bytes]:
        """Offers the blocks that `num_computed` has filled to others; returns their digests."""
        full = seq.num_computed // self.block_tokens
        if not self._prefix_cache or full <= seq.num_published:
            return []
        self._hash(seq, full)
        fresh = seq.hashes[seq.num_published : full]
        for i, digest in enumerate(fresh, seq.num_published):
            for group, pool in enumerate(self.pools):
                block = seq.blocks[group][i]
                if block != NULL_BLOCK:
                    pool.publish(block, digest)
            if self._computing.get(digest) is seq:
                del self._computing[digest]
        seq.num_published = full
        return fresh

    def close(self, seq: Sequence) -> list[bytes]:
        """Gives everything back, tail first, so that prefixes live longest; returns the digests it was computing."""
        for group, pool in enumerate(self.pools):
            pool.release(reversed(seq.blocks[group]))
            seq.blocks[group].clear()
        seq.capacity_tokens = 0
        abandoned = [d for d in seq.hashes[seq.num_published :] if self._computing.get(d) is seq]
        for digest in abandoned:
            del self._computing[digest]
        return abandoned

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def check(self) -> None:
        """Raises AssertionError when a pool's books do not balance."""
        for pool in self.pools:
            pool.check()
