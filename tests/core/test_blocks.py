"""The books of a block pool balance after every operation, whatever the order of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from tickertape.core.blocks import NULL_BLOCK, BlockPool, hash_block, root_hash


class Pool(RuleBasedStateMachine):
    """Against a model: who holds which block, and which digest was published for which content."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.refs: dict[int, int] = {}
        self.published: dict[bytes, int] = {}
        self.counter = 0

    @precondition(lambda self: self.pool.num_free > 0)
    @rule(target=held, data=st.data())
    def take(self, data: st.DataObject) -> list[int]:
        count = data.draw(st.integers(1, self.pool.num_free))
        blocks = self.pool.take(count)
        assert len(set(blocks)) == count
        for block in blocks:
            assert block != NULL_BLOCK
            assert self.refs.get(block, 0) == 0, "a block was given to two writers"
            self.refs[block] = 1
        self.published = {digest: b for digest, b in self.published.items() if b not in blocks}
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks: list[int]) -> None:
        self.pool.release([NULL_BLOCK, *reversed(blocks)])
        for block in blocks:
            self.refs[block] -= 1

    @rule(blocks=held)
    def publish(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.published.values():
                continue
            self.counter += 1
            digest = hash_block(root_hash(b""), [self.counter])
            self.pool.publish(block, digest)
            self.published[digest] = block

    @precondition(lambda self: self.published)
    @rule(target=held, data=st.data())
    def share(self, data: st.DataObject) -> list[int]:
        digest = data.draw(st.sampled_from(sorted(self.published)))
        block = self.pool.find(digest)
        assert block == self.published[digest], "a hit on something else than was published"
        self.pool.share([block])
        self.refs[block] += 1
        return [block]

    @rule()
    def forget(self) -> None:
        self.pool.forget_cached()
        self.published = {d: b for d, b in self.published.items() if self.refs[b]}

    @invariant()
    def balanced(self) -> None:
        self.pool.check()
        assert self.pool.num_held == sum(refs > 0 for refs in self.refs.values())
        assert self.pool.num_held + self.pool.num_free == self.pool.num_blocks - 1
        for digest, block in self.published.items():
            assert self.pool.find(digest) == block


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_least_recently_released_is_evicted_first_and_a_hit_saves_it() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    digests = [hash_block(root_hash(b""), [i]) for i in range(3)]
    for block, digest in zip(blocks, digests, strict=True):
        pool.publish(block, digest)
    pool.release(blocks)
    pool.share([blocks[0]])
    pool.release([blocks[0]])
    assert pool.take(1) == [blocks[1]]
    assert [pool.find(d) is not None for d in digests] == [True, False, True]


def test_blank_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(4)
    first, second, third = pool.take(3)
    pool.publish(first, b"x")
    pool.release([first, second, third])
    assert first not in pool.take(2)


def test_the_first_of_two_equal_blocks_answers() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2)
    pool.publish(first, b"x")
    pool.publish(second, b"x")
    assert pool.find(b"x") == first
    pool.release([second])
    assert pool.num_cached == 0, "a duplicate that nobody can find is not worth keeping"


def test_misuse_is_refused() -> None:
    pool = BlockPool(3)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.take(3)
    (block,) = pool.take(1)
    pool.release([block])
    with pytest.raises(ValueError, match="released once too often"):
        pool.release([block])
    with pytest.raises(ValueError, match="null block"):
        BlockPool(1)


def test_hashes_chain_and_keys_separate() -> None:
    plain, salted = root_hash(b""), root_hash(b"salt")
    assert plain != salted
    assert hash_block(plain, [1, 2]) != hash_block(salted, [1, 2])
    assert hash_block(hash_block(plain, [1]), [2]) != hash_block(hash_block(plain, [2]), [1])
    assert hash_block(plain, [1, 2]) == hash_block(plain, (1, 2))
