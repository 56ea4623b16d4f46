"""The runner that plays a script. A plain row costs a look-up; what a sampler must answer is asked of the real one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tickertape.plugins import (
    Array,
    BackendOptions,
    Batch,
    CacheGroup,
    Limits,
    Masks,
    MemoryPlan,
    ModelSpec,
    Opened,
    Progress,
    Row,
    RunnerError,
    Sampler,
    SamplingParams,
    StepOutput,
    WeightSet,
    unpack_tokens,
)
from tickertape.plugins.backends.scripted.script import Failure, Script

__all__ = ["ScriptedRunner", "make"]


def make(spec: ModelSpec, options: BackendOptions) -> ScriptedRunner:
    return ScriptedRunner(Script.of(spec))


class _Part(Struct, gc=False):
    """What one slot plays. Output token i is `output[i]`, and beyond those `rest` over and over. `scored`: the sampler
    is asked too, for log probabilities or because a parameter can change what is played."""

    num_prompt_tokens: int
    output: tuple[int, ...]
    rest: tuple[int, ...]
    fail: Failure | None
    scored: bool

    def token(self, index: int) -> int:
        if index < len(self.output):
            return self.output[index]
        return self.rest[(index - len(self.output)) % len(self.rest)]


class _Launched(NamedTuple):
    """A step between forward and sample. The parts are its rows': a later step may close their slots."""

    batch: Batch
    parts: list[_Part]


class ScriptedRunner:
    """A ModelRunner without a model. What a row gives depends on its sequence and its position alone, so steps may be
    launched ahead, batched, preempted and resumed at will. `batches`, when given, gets every batch, in order."""

    def __init__(
        self,
        script: Script,
        *,
        sleep: Callable[[float], None] = time.sleep,
        batches: list[Batch] | None = None,
    ) -> None:
        self._script = script
        self._sleep = sleep
        self._batches = batches
        self._parts: dict[int, _Part] = {}
        self._launched: deque[_Launched] = deque()

    def plan(self, limits: Limits) -> MemoryPlan:
        self._limits = limits
        group = CacheGroup(kind="full", window=None, block_tokens=limits.block_tokens, block_bytes=1)
        return MemoryPlan(weight_bytes=0, private_bytes=0, workspace_bytes=0, groups=(group,))

    def load(self, weights: WeightSet) -> Iterator[Progress]:
        """Needs no weights, but opens them all: ready no sooner than a model that computes with them."""
        names = weights.names()
        for number, name in enumerate(names, 1):
            weights.open(name)
            yield Progress("load", number, len(names), "tensors")

    def allocate(self, num_blocks: Sequence[int]) -> None:
        self._sampler = Sampler(np, self._limits.max_num_seqs, self._script.vocab_size)

    def forward(self, batch: Batch) -> None:
        if self._batches is not None:
            self._batches.append(batch)
        for slot in batch.closed:
            self._parts.pop(slot, None)
        for opened in batch.opened:
            self._parts[opened.slot] = self._cast(opened)
        launched = _Launched(batch, [self._parts[row.slot] for row in batch.rows])
        self._pass_time(batch.rows)
        _raise_due(launched, "forward")
        self._launched.append(launched)

    def sample(self, masks: Masks | None) -> StepOutput:
        launched = self._launched.popleft()
        batch, parts = launched
        for slot in batch.closed:
            self._sampler.close(slot)
        for opened in batch.opened:
            if _is_scored(opened.sampling):  # greedy: whatever the temperature, the script is what is most likely
                self._sampler.open(replace(opened, sampling=replace(opened.sampling, temperature=0.0)))
        failed = _raise_due(launched, "sample")
        if masks is None and not any(part.scored for part in parts):
            return StepOutput([_accept(row, part) for row, part in zip(batch.rows, parts, strict=True)], None, failed)
        return self._sample_scored(launched, masks, failed)

    def close(self) -> None:
        self._parts.clear()
        self._launched.clear()

    def _cast(self, opened: Opened) -> _Part:
        prompt = tuple(unpack_tokens(opened.history)[: opened.num_prompt_tokens])
        play = self._script.play_for(prompt)
        output = play.output(prompt, opened.sampling)
        rest = output if play.then == "repeat" and output else (self._script.eos_token,)
        return _Part(opened.num_prompt_tokens, output, rest, play.fail, _is_scored(opened.sampling))

    def _pass_time(self, rows: Sequence[Row]) -> None:
        script = self._script
        if script.chunk_s or script.token_s:
            chunks = sum(len(row.tokens) > 1 for row in rows) * script.chunk_s
            self._sleep(chunks + script.token_s * any(row.num_logits for row in rows))

    def _sample_scored(self, launched: _Launched, masks: Masks | None, failed: dict[int, str]) -> StepOutput:
        """All rows through the sampler, over a made-up distribution in which the script's token is likeliest."""
        rows, parts = launched.batch.rows, launched.parts
        logits = np.concatenate([self._logits(row, part) for row, part in zip(rows, parts, strict=True)])
        output = self._sampler.sample(rows, logits, masks)
        return replace(output, errors={**output.errors, **failed})

    def _logits(self, row: Row, part: _Part) -> Array:
        end = row.start + len(row.tokens)
        positions = np.arange(end - row.num_logits, end)
        logits = (positions[:, None] * 104729 + np.arange(self._script.vocab_size) * 7919) % 97 / -16.0
        for line, position in enumerate(positions.tolist()):
            if position + 1 >= part.num_prompt_tokens:
                logits[line, part.token(position + 1 - part.num_prompt_tokens)] = 8.0
        return logits


def _accept(row: Row, part: _Part) -> tuple[int, ...]:
    """The ids the row gives: none without wanted logits, else one, and one more for each draft that was right."""
    index = row.start + len(row.tokens) - row.num_logits + 1 - part.num_prompt_tokens
    if row.num_logits < 2:
        return (part.token(index),) if row.num_logits else ()
    ids = [part.token(index)]
    for draft in row.tokens[len(row.tokens) - row.num_logits + 1 :]:
        if draft != ids[-1]:
            break
        ids.append(part.token(index + len(ids)))
    return tuple(ids)


def _is_scored(sampling: SamplingParams) -> bool:
    """Whether anything is asked for that a script alone cannot answer."""
    return bool(
        sampling.logprobs is not None
        or sampling.prompt_logprobs is not None
        or sampling.max_tokens == 0
        or sampling.logit_bias
        or sampling.allowed_tokens is not None
        or sampling.bad_tokens
        or sampling.min_tokens
        or sampling.logits_processors
    )


def _raise_due(launched: _Launched, during: str) -> dict[int, str]:
    """Raises what the script has for this step, or returns the rows that fail, by slot."""
    failed = {}
    for row, part in zip(launched.batch.rows, launched.parts, strict=True):
        fail = part.fail
        if fail is None or not row.num_logits or fail.during != during:
            continue
        if row.start + len(row.tokens) - part.num_prompt_tokens != fail.at:
            continue
        if fail.kind == "runner":
            raise RunnerError(fail.message)
        if fail.kind == "worker":
            raise RuntimeError(fail.message)
        failed[row.slot] = fail.message
    return failed
