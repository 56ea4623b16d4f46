"""The backend itself: the six methods of a ModelRunner."""

import numpy as np

from tickertape.plugins import BackendOptions, CacheGroup, MemoryPlan, ModelSpec, Progress, Sampler


def make(spec: ModelSpec, options: BackendOptions) -> "MarkovRunner":
    return MarkovRunner(spec)


class MarkovRunner:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def plan(self, limits):
        """One cache group; a token takes the eight bytes of its id."""
        self.limits = limits
        logits_bytes = limits.max_batch_tokens * self.spec.vocab_size * 4
        group = CacheGroup(
            kind="full", window=None, block_tokens=limits.block_tokens, block_bytes=8 * limits.block_tokens
        )
        return MemoryPlan(
            weight_bytes=self.spec.weight_bytes, private_bytes=0, workspace_bytes=logits_bytes, groups=(group,)
        )

    def load(self, weights):
        self.table = weights.open("table")  # [V * V, V]: a view of the file, no copy
        yield Progress("load", 1, 1, "tables")

    def allocate(self, num_blocks):
        self.memory = np.zeros(num_blocks[0] * self.limits.block_tokens, dtype=np.int64)
        self.sampler = Sampler(np, self.limits.max_num_seqs, self.spec.vocab_size)

    def forward(self, batch):
        for slot in batch.closed:
            self.sampler.close(slot)
        for opened in batch.opened:
            self.sampler.open(opened)
        for row in batch.rows:
            positions = row.start + np.arange(len(row.tokens))
            self.memory[self.places(batch, row, positions)] = row.tokens
        self.rows = batch.rows
        self.logits = self.table[np.concatenate([self.states(batch, row) for row in batch.rows])]

    def sample(self, masks):
        return self.sampler.sample(self.rows, self.logits, masks)

    def close(self):
        self.memory = None

    def places(self, batch, row, positions):
        """Where in memory the ids of these positions are: the slot's line of the block table says which block."""
        blocks = batch.tables[0][row.slot, positions // self.limits.block_tokens]
        return blocks * self.limits.block_tokens + positions % self.limits.block_tokens

    def states(self, batch, row):
        """The last two ids at each position whose logits are wanted, as one number. Before the first stands id 0."""
        end = row.start + len(row.tokens)
        wanted = np.arange(end - row.num_logits, end)
        last = self.memory[self.places(batch, row, wanted)]
        before = np.where(wanted > 0, self.memory[self.places(batch, row, np.maximum(wanted - 1, 0))], 0)
        return before * self.spec.vocab_size + last
