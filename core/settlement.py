"""What became of a step: new ids, finished sequences, failed rows, filled blocks, and what clients are told."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import Final

from tickertape.core.acceptance import FAULTS
from tickertape.core.batch import Logprobs, Row, StepOutput
from tickertape.core.drawing import NOTHING_ALLOWED
from tickertape.core.errors import InvalidRequest, RowError, TickertapeError
from tickertape.core.kv_cache import KVCache
from tickertape.core.memory import Limits
from tickertape.core.policy import Policy
from tickertape.core.request import Finish, TokenDelta
from tickertape.core.roster import Roster
from tickertape.core.sequence import Sequence
from tickertape.core.step import Step, StepEvents, logprob_lines

__all__ = ["NO_FAULTS", "Settlement"]

NO_FAULTS: Final[Mapping[int, TickertapeError]] = MappingProxyType({})


class Settlement:
    """Settles steps and collects the events of them. Owned by the scheduler's thread."""

    def __init__(self, limits: Limits, kv: KVCache, roster: Roster, policy: Policy) -> None:
        self._limits = limits
        self._kv = kv
        self._roster = roster
        self._policy = policy
        self._events = StepEvents()
        self.num_generated_tokens = 0

    def take_events(self) -> StepEvents:
        events, self._events = self._events, StepEvents()
        return events

    def commit(self, step: Step, output: StepOutput, faults: Mapping[int, TickertapeError] = NO_FAULTS) -> None:
        """Takes in the output of a step. A sequence that ended meanwhile is passed over; one that was preempted
        keeps its new ids, though its blocks are gone."""
        size, logprobs, errors = self._limits.block_tokens, output.logprobs, output.errors
        line = 0
        for i, (seq, row, ids) in enumerate(zip(step.sequences, step.batch.rows, output.tokens, strict=True)):
            first, line = line, line + (logprobs.counts[i] if logprobs is not None else 0)
            if seq.status == "finished":
                continue
            if errors and row.slot in errors:
                self.fail(seq, _row_fault(seq, errors[row.slot]))
                continue
            if faults and row.slot in faults:
                self.fail(seq, faults[row.slot])
                continue
            if seq.slot == row.slot:
                seq.num_computed = row.start + len(row.tokens)
                if seq.num_computed // size > seq.num_published:
                    self._roster.waiting.wake(self._kv.publish(seq))
            if self._policy.counts:
                self._policy.served(self._policy.lane(seq.request), len(row.tokens) - len(ids), len(ids))
            if logprobs is not None and seq.wants_scores:
                self._tell_scores(seq, row, logprobs, first, line)
            if step.samples[i]:
                seq.num_pending -= 1
                self._append(seq, ids, logprobs, line)
            elif seq.max_output_tokens == 0 and seq.num_computed == len(seq.tokens):
                self.tell(seq, (), finish=Finish("length"))

    def fail(self, seq: Sequence, error: TickertapeError) -> None:
        """Ends one sequence with an error."""
        self._events.failures.append((seq.id, error))
        self._roster.end(seq)

    def tell(
        self,
        seq: Sequence,
        tokens: tuple[int, ...],
        *,
        finish: Finish | None = None,
        logprobs: Logprobs | None = None,
        first_line: int = 0,
    ) -> None:
        """One delta; with `finish` the last one, and the end of the sequence."""
        self.num_generated_tokens += len(tokens)
        lines = None
        if logprobs is not None and seq.request.sampling.logprobs is not None:
            lines = logprob_lines(logprobs, first_line, len(tokens), seq.request.sampling.logprobs)
        cached, seq.num_cached_tokens = seq.num_cached_tokens, None
        self._events.deltas.append((seq.id, TokenDelta(tokens, lines, None, cached, finish)))
        if finish is not None:
            self._roster.end(seq)

    def _append(self, seq: Sequence, ids: Seq[int], logprobs: Logprobs | None, end: int) -> None:
        """New ids up to the one that ends the sequence, if any does. Their lines are the last before `end`."""
        if not ids:
            self.fail(seq, RowError("the runner gave no token for a row that was to be sampled"))
            return
        try:
            count, finish = self._extend(seq, ids)
        except TickertapeError as error:
            self.fail(seq, error)
            return
        self.tell(seq, tuple(ids[:count]), finish=finish, logprobs=logprobs, first_line=end - len(ids))

    def _extend(self, seq: Sequence, ids: Seq[int]) -> tuple[int, Finish | None]:
        """How many of the ids the sequence takes, and why it takes no more. Raises what its grammar does: the id
        is not in it, or it gives out."""
        constraint = seq.constraint
        for count, token in enumerate(ids, 1):
            seq.tokens.append(token)
            total = len(seq.tokens)
            if token in seq.stop_tokens:
                return count, Finish("stop", token)
            if constraint is not None:
                constraint.accept((token,))
                if constraint.is_done:
                    return count, Finish("stop")
            if total - seq.num_prompt_tokens >= seq.max_output_tokens or total >= self._limits.max_model_len:
                return count, Finish("length")
        return len(ids), None

    def _tell_scores(self, seq: Sequence, row: Row, logprobs: Logprobs, first: int, end: int) -> None:
        """Scores of prompt positions not told before: a preempted prompt is computed twice but told once."""
        position = row.start + len(row.tokens) - row.num_logits
        skip = max(0, seq.num_scores - position)
        count = min(end - first, seq.num_prompt_tokens - 1 - position) - skip
        if count <= 0:
            return
        seq.num_scores += count
        told = logprob_lines(logprobs, first + skip, count, seq.request.sampling.prompt_logprobs or 0)
        cached, seq.num_cached_tokens = seq.num_cached_tokens, None
        self._events.deltas.append((seq.id, TokenDelta((), None, told, cached)))


def _row_fault(seq: Sequence, reason: str) -> TickertapeError:
    """A row that failed. Where every token is masked, that is the doing of a request which rules tokens out."""
    if reason == FAULTS[NOTHING_ALLOWED]:
        sampling = seq.request.sampling
        asked = {
            "grammar": seq.constraint is not None,
            "allowed_tokens": sampling.allowed_tokens is not None,
            "bad_tokens": bool(sampling.bad_tokens),
        }
        for param, is_asked in asked.items():
            if is_asked:
                return InvalidRequest("what the request allows and forbids leaves no token to go on with", param=param)
    return RowError(reason)
