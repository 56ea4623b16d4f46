"""Blocks: fixed-size pieces of KV memory, ref-counted, cached by content, evicted least recently used first.

The pool hands out integers; what lies behind them is the runner's. A block is always in exactly one state:

    blank      free, holds nothing worth keeping
    held       ref > 0: in the tables of one or more sequences
    cached     ref = 0, but its content is known by hash: a prefix hit revives it, need evicts it

blank + cached + held = num_blocks - 1: block 0 is the null block, which belongs to nobody.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import sha256

__all__ = ["NULL_BLOCK", "BlockPool", "hash_block", "root_hash"]

NULL_BLOCK = 0


def root_hash(cache_key: bytes) -> bytes:
    """Parent of a sequence's first block: separates salts, adapters and media from each other."""
    return sha256(b"tickertape\0" + cache_key).digest()


def hash_block(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Identity of a full block: everything before it and its own ids. SHA-256, so a hit needs no comparison of ids."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


class BlockPool:
    """The blocks of one cache group. Not thread-safe: the scheduler's thread owns it."""

    __slots__ = ("_blank", "_by_hash", "_cached", "_hash_of", "_refs", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, got {num_blocks}")
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that `take` can give: blank ones, then cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def take(self, count: int) -> list[int]:
        """`count` blocks for one writer, each with one reference. The caller has checked `num_free`."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks wanted, {self.num_free} free")
        from_blank = min(count, len(self._blank))
        taken = [self._blank.pop() for _ in range(from_blank)]
        taken.extend(self._evict() for _ in range(count - from_blank))
        for block in taken:
            self._refs[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more reader for each block, all of them full and cached by hash. Null blocks are passed over."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less for each block, in the given order: what comes first is evicted first, so hand over
        a sequence's tail before its head."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            refs = self._refs[block] - 1
            if refs < 0:
                raise ValueError(f"block {block} released once too often")
            self._refs[block] = refs
            if refs == 0:
                if self._hash_of[block] is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Makes a held, full block findable. When another block already answers for `digest` that one stays: tables
        are append-only, so duplicates are left alone."""
        if digest not in self._by_hash and self._hash_of[block] is None:
            self._by_hash[digest] = block
            self._hash_of[block] = digest

    def find(self, digest: bytes) -> int | None:
        return self._by_hash.get(digest)

    def is_held(self, block: int) -> bool:
        return self._refs[block] > 0

    def forget_cached(self) -> int:
        """Turns every cached block into a blank one; returns how many."""
        count = len(self._cached)
        self._blank.extend(self._evict() for _ in range(count))
        return count

    def check(self) -> None:
        """Raises AssertionError when the books do not balance. Linear: for tests and idle moments."""
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert not blank & cached, "a block is blank and cached"
        assert NULL_BLOCK not in blank | cached, "the null block was given back"
        assert self._refs[NULL_BLOCK] == 0, "the null block is held"
        for block in range(1, self.num_blocks):
            free = block in blank or block in cached
            assert (self._refs[block] == 0) == free, f"block {block}: {self._refs[block]} references, free: {free}"
            digest = self._hash_of[block]
            assert block not in cached or digest is not None, f"block {block} is cached without a hash"
            assert digest is None or self._by_hash[digest] == block, f"block {block} is not what its hash finds"
        assert len(self._by_hash) == sum(h is not None for h in self._hash_of), "a hash finds no block"

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        digest = self._hash_of[block]
        assert digest is not None
        del self._by_hash[digest]
        self._hash_of[block] = None
        return block
