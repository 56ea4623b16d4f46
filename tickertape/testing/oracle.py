"""A runner whose KV memory holds token ids, so that any mistake in paging shows in the text.

The next id of a sequence is a digest of what the runner *reads back* through the block tables, not of what it was
told. A wrong block, a stale prefix hit, a lost or doubled position gives another text than `OracleRunner.expected`,
which needs no memory at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tickertape.core.batch import LAST, Batch, Masks, Opened, StepOutput
from tickertape.core.errors import RunnerError
from tickertape.core.memory import CacheGroup, Limits, MemoryPlan
from tickertape.core.ports import Progress, WeightSet

__all__ = ["OracleRunner"]

_BLANK = -7


class OracleRunner:
    """`windows` has one entry per cache group: None for full attention, else a sliding window.

    `fail_rows` and `fail_steps` map step numbers to what goes wrong in them: slots by row, or the whole step.
    """

    def __init__(self, vocab_size: int = 97, windows: Sequence[int | None] = (None,)) -> None:
        self.vocab_size = vocab_size
        self.windows = tuple(windows)
        self.batches: list[Batch] = []
        self.fail_steps: set[int] = set()
        self.fail_slots: dict[int, set[int]] = {}
        self._memory: list[npt.NDArray[np.int64]] = []
        self._outputs: deque[StepOutput | None] = deque()
        self._last: dict[int, int] = {}
        self._open: dict[int, Opened] = {}
        self._block_tokens = 0

    def expected(self, prompt: Sequence[int], count: int) -> list[int]:
        """What a correct engine gives."""
        tokens = list(prompt)
        for _ in range(count):
            seen = [tokens if window is None else tokens[-window:] for window in self.windows]
            tokens.append(self._digest(seen))
        return tokens[len(prompt) :]

    def plan(self, limits: Limits) -> MemoryPlan:
        self._block_tokens = limits.block_tokens
        groups = tuple(
            CacheGroup("full" if window is None else "sliding", window, limits.block_tokens, limits.block_tokens * 8)
            for window in self.windows
        )
        return MemoryPlan(0, 0, 0, groups)

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        yield from ()

    def allocate(self, num_blocks: Sequence[int]) -> None:
        self._memory = [np.full((count, self._block_tokens), _BLANK, dtype=np.int64) for count in num_blocks]

    def forward(self, batch: Batch) -> None:
        self.batches.append(batch)
        for slot in batch.closed:
            del self._open[slot]
            self._last.pop(slot, None)
        for opened in batch.opened:
            assert opened.slot not in self._open, f"slot {opened.slot} opened twice"
            self._open[opened.slot] = opened
        if batch.step in self.fail_steps:
            raise RunnerError("this step fails on purpose")
        for row in batch.rows:
            assert row.slot in self._open, f"slot {row.slot} was never opened"
            tokens = [self._last[row.slot] if token == LAST else token for token in row.tokens]
            for group, memory in enumerate(self._memory):
                for offset, token in enumerate(tokens):
                    block, place = self._locate(batch, group, row.slot, row.start + offset)
                    assert block != 0, "a write to the null block"
                    memory[block, place] = token
        self._outputs.append(self._compute(batch))

    def sample(self, masks: Masks | None) -> StepOutput:
        output = self._outputs.popleft()
        assert output is not None
        return output

    def close(self) -> None:
        self._memory = []

    def _compute(self, batch: Batch) -> StepOutput:
        failing = self.fail_slots.get(batch.step, set())
        tokens: list[list[int]] = []
        for row in batch.rows:
            ids: list[int] = []
            if row.num_logits and row.slot not in failing:
                end = row.start + len(row.tokens)
                seen = []
                for group, window in enumerate(self.windows):
                    first = 0 if window is None else max(0, end - window)
                    places = [self._locate(batch, group, row.slot, position) for position in range(first, end)]
                    seen.append([int(self._memory[group][block, place]) for block, place in places])
                ids = [self._digest(seen)]
                self._last[row.slot] = ids[0]
            tokens.append(ids)
        errors = {row.slot: "this row fails on purpose" for row in batch.rows if row.slot in failing}
        return StepOutput(tokens, None, errors)

    def _locate(self, batch: Batch, group: int, slot: int, position: int) -> tuple[int, int]:
        return int(batch.tables[group][slot, position // self._block_tokens]), position % self._block_tokens

    def _digest(self, seen: Sequence[Sequence[int]]) -> int:
        return crc32(repr([list(part) for part in seen]).encode()) % self.vocab_size
