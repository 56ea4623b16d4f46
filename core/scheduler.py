"""Which tokens are computed in the next step, and what became of those of the last one.

There is no prefill phase and no decode phase. Every sequence has tokens, and its scheduled positions catch up with
them; chunked prefill, prefix hits, preemption and resumption are then one operation. (The idea is vLLM V1's.)

What `schedule` does, in this order:
  1. Running sequences that want one token, best rank first; then those that want more, while the token budget lasts.
     One that needs a block no pool has preempts the running one of worst rank (perhaps itself): that one's blocks
     and slot are free at once, its row leaves the step, and it waits again at its old place.
  2. Unless something was preempted: waiting sequences in the policy's order, while slots, budget and blocks last. A
     head that does not fit may preempt running ones it outranks; otherwise nobody passes it. One whose next prefix
     block is being computed by another is parked until that block is cached or abandoned.
  3. The step is fixed: its positions count as scheduled, ids to be sampled as pending.
Then `commit`, or `fail`, settles the step. At most one step may be scheduled before the one before it is settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import Final

from tickertape.core.batch import LAST, Batch, Row, StepOutput
from tickertape.core.errors import ContextLengthExceeded, InvalidRequest, TickertapeError
from tickertape.core.grammar import Constraint
from tickertape.core.kv_cache import KVCache
from tickertape.core.logits_processor import LogitsProcessorSpec, open_processors
from tickertape.core.memory import Limits
from tickertape.core.policy import Policy
from tickertape.core.ports import EngineStats
from tickertape.core.request import Finish, Request
from tickertape.core.roster import Roster
from tickertape.core.sequence import NO_SLOT, Sequence
from tickertape.core.settlement import NO_FAULTS, Settlement
from tickertape.core.step import Step, StepEvents

__all__ = ["Scheduler"]

_LAST_ROW = (LAST,)
_NO_PROCESSORS: Final[Mapping[str, LogitsProcessorSpec]] = MappingProxyType({})


class Scheduler:
    """Tokens and blocks, nothing else: no text, no device, no clock. One thread owns it.

    `chunked` False (a runner that takes whole prompts only) makes a prompt wait until it fits a step in one piece.
    `watermark` is the share of each pool that admission leaves free for the sequences that already run. `processors`
    are those that a request may name.
    """

    def __init__(
        self,
        limits: Limits,
        kv: KVCache,
        policy: Policy,
        *,
        chunked: bool = True,
        watermark: float = 0.01,
        processors: Mapping[str, LogitsProcessorSpec] = _NO_PROCESSORS,
    ) -> None:
        self._limits = limits
        self._kv = kv
        self._policy = policy
        self._chunked = chunked
        self._processors = processors
        self._spare_blocks = int(min(pool.num_blocks for pool in kv.pools) * watermark)
        self._roster = Roster(limits.max_num_seqs, kv, policy)
        self._settlement = Settlement(limits, kv, self._roster, policy)
        # The step being built: (sequence, row, whether it samples) by slot, and the tokens it may still have.
        self._rows: dict[int, tuple[Sequence, Row, bool]] = {}
        self._budget = 0
        self._num_steps = self._num_preemptions = self._num_prompt_tokens = self._num_cached_tokens = 0

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Queues a request, with the constraint that its grammar was compiled to and that has accepted what it
        replays. Raises InvalidRequest or ContextLengthExceeded when it could never be served, RowError when a logits
        processor of it cannot be made."""
        processors = open_processors(self._processors, request) if request.sampling.logits_processors else ()
        seq = Sequence(request, len(self._kv.pools), processors, constraint)
        total = len(seq.tokens)
        if not 0 < request.num_prompt_tokens <= total:
            raise InvalidRequest("the prompt holds no tokens", param="prompt")
        assert request.grammar is None or constraint is not None, "a grammar that was not compiled"
        if request.adapter is not None:
            raise InvalidRequest("adapters are not supported yet", code="unsupported_value", param="model")
        longest = min(self._limits.max_model_len, self._kv.capacity_tokens)
        if total + (seq.max_output_tokens > 0) > longest:
            raise ContextLengthExceeded(
                f"the prompt has {total} tokens; the longest sequence this server can hold is {longest} tokens",
                param="prompt",
            )
        self._roster.join(seq)

    def abort(self, request_id: int) -> None:
        """Ends a request without a word, wherever it stands; its blocks are free at once. Unknown ids are no error."""
        seq = self._roster.get(request_id)
        if seq is not None:
            self._roster.end(seq)

    def has_work(self) -> bool:
        return len(self._roster) > 0

    def take_events(self) -> StepEvents:
        """What is to be told since the last call."""
        return self._settlement.take_events()

    def stats(self) -> EngineStats:
        pools = self._kv.pools
        total = sum(pool.num_blocks - 1 for pool in pools)
        free = sum(pool.num_free for pool in pools)
        cached = sum(pool.num_cached for pool in pools)
        return EngineStats(
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.waiting),
            num_blocks=total,
            num_free_blocks=free - cached,
            num_cached_blocks=cached,
            num_used_blocks=total - free,
            kv_capacity_tokens=self._kv.capacity_tokens,
            max_model_len=self._limits.max_model_len,
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_generated_tokens=self._settlement.num_generated_tokens,
        )

    # -- a step --------------------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """The next step, or None when there is nothing to compute now."""
        self._budget = self._limits.max_batch_tokens
        before = self._num_preemptions
        self._continue_long(self._continue_single())
        if self._num_preemptions == before:
            self._admit()
        if not self._rows:
            return None
        self._num_steps += 1
        sequences, rows, samples = zip(*self._rows.values(), strict=True)
        self._rows = {}
        opened, closed = self._roster.take_changes()
        return Step(Batch(self._num_steps, rows, opened, closed, self._kv.tables), sequences, samples)

    def commit(self, step: Step, output: StepOutput, faults: Mapping[int, TickertapeError] = NO_FAULTS) -> None:
        """Takes in what a step gave. `faults` by slot: sequences that are to end with an error."""
        self._settlement.commit(step, output, faults)

    def prune(self, step: Step | None) -> Step | None:
        """A step scheduled ahead, without the rows of sequences that ended since; None when nothing is left of it."""
        if step is None:
            return None
        step = step.without_finished()
        if step.batch.rows:
            return step
        self._roster.restore_closed(step.batch.closed)
        return None

    def fail(self, step: Step, error: TickertapeError) -> None:
        """Ends every sequence of a step that could not be computed."""
        for seq in step.sequences:
            if seq.status != "finished":
                self._settlement.fail(seq, error)

    def _continue_single(self) -> list[Sequence]:
        """Places the sequences that want one token; returns those that want more. The hot path: at most one row a
        sequence, no allocation but the row itself."""
        long: list[Sequence] = []
        rows, limit = self._rows, self._limits.max_model_len
        for seq in tuple(self._roster.running):
            start = seq.num_scheduled
            wanted = len(seq.tokens) + seq.num_pending - start
            if wanted != 1 or seq.wants_scores or seq.max_output_tokens == 0:
                if wanted > 0 and seq.slot != NO_SLOT:
                    long.append(seq)
                continue
            if seq.slot == NO_SLOT or self._budget == 0:
                continue
            tokens: Seq[int]
            if seq.num_pending:
                # A step in flight may be this sequence's last: do not run past what is certain.
                if seq.num_output_tokens >= seq.max_output_tokens or start + 1 >= limit:
                    continue
                tokens = _LAST_ROW
            else:
                tokens = (seq.tokens[start],)
            if start >= seq.capacity_tokens and not self._make_room(seq, start + 1):
                continue
            rows[seq.slot] = (seq, Row(seq.slot, tokens, start, 1), True)
            seq.num_scheduled = start + 1
            seq.num_pending += 1
            self._budget -= 1
        return long

    def _continue_long(self, sequences: list[Sequence]) -> None:
        for seq in sequences:
            count = min(len(seq.tokens) - seq.num_scheduled, self._budget)
            if count <= 0 or seq.slot == NO_SLOT or (not self._chunked and count < len(seq.tokens)):
                continue
            self._kv.slide(seq)
            while count > 1 and len(self._roster.running) == 1 and not self._kv.extend(seq, seq.num_scheduled + count):
                count //= 2  # alone with a small sliding pool: take smaller pieces
            if self._make_room(seq, seq.num_scheduled + count):
                self._place(seq, count)

    def _make_room(self, seq: Sequence, num_tokens: int) -> bool:
        """Room for `num_tokens` positions of `seq`, preempting whom it must. False when `seq` itself had to go."""
        self._kv.slide(seq)
        while not self._kv.extend(seq, num_tokens):
            victim = self._roster.running[-1]
            if victim is not seq:
                self._preempt(victim)
            elif len(self._roster.running) > 1:
                self._preempt(seq)
                return False
            else:
                # Nobody else holds a block and there is no room: this is as long as it can get.
                self._settlement.tell(seq, (), finish=Finish("length"))
                return False
        return True

    def _place(self, seq: Sequence, count: int) -> None:
        """The row of a prompt, or of a piece of it."""
        start, end = seq.num_scheduled, seq.num_scheduled + count
        samples = end == len(seq.tokens) and seq.max_output_tokens > 0
        num_logits = count if seq.wants_scores else int(samples)
        self._rows[seq.slot] = (seq, Row(seq.slot, seq.tokens[start:end], start, num_logits), samples)
        seq.num_scheduled = end
        seq.num_pending += samples
        self._budget -= count

    def _admit(self) -> None:
        waiting = self._roster.waiting
        while self._budget > 0 and (seq := waiting.head()) is not None:
            hit, computed_elsewhere = self._kv.match(seq)
            if computed_elsewhere is not None:
                waiting.park(seq, computed_elsewhere)
                continue
            wanted = len(seq.tokens) - hit * self._limits.block_tokens
            if not self._chunked and wanted > self._budget:
                return
            count = self._fit(seq, hit, min(wanted, self._budget))
            if count:
                self._roster.seat(seq)
                self._count_admission(seq, hit)
                self._place(seq, count)
            elif not self._preempt_for(seq):
                return

    def _fit(self, seq: Sequence, hit: int, count: int) -> int:
        """Gives `seq` the memory for a first step; returns how many tokens that may have, 0 when it must wait."""
        slot = self._roster.next_slot
        if slot is None:
            return 0
        running = bool(self._roster.running)
        while not self._kv.admit(seq, slot, hit, count, self._spare_blocks if running else 0):
            if running or count == 1 or not self._chunked:
                return 0
            count //= 2  # alone with a small sliding pool
        return count

    def _preempt_for(self, seq: Sequence) -> bool:
        running = self._roster.running
        if not running or not self._policy.outranks(seq.request, running[-1].request):
            return False
        self._preempt(running[-1])
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._num_preemptions += 1
        placed = self._rows.pop(seq.slot, None)
        if placed is not None:
            _, row, samples = placed
            self._budget += len(row.tokens)
            seq.num_pending -= samples
        self._roster.requeue(seq)

    def _count_admission(self, seq: Sequence, hit: int) -> None:
        if not seq.was_admitted:
            seq.was_admitted = True
            seq.num_cached_tokens = min(hit * self._limits.block_tokens, seq.num_prompt_tokens)
            self._num_prompt_tokens += seq.num_prompt_tokens
            self._num_cached_tokens += seq.num_cached_tokens
