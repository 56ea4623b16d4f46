"""The sampling parameters of all slots as columns, so that a step gathers its rows' instead of walking over them."""

from __future__ import annotations

import math
import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tickertape.core.bans import Bans
from tickertape.core.batch import Opened
from tickertape.core.penalties import Penalties
from tickertape.core.philox import uniform
from tickertape.core.token_bias import TokenBias

__all__ = [
    "BANNED",
    "BIASED",
    "EDITED",
    "LOGPROBS",
    "MIN_P",
    "PENALISED",
    "PROCESSED",
    "PROMPT_ONLY",
    "RANDOM",
    "RANKED",
    "SEQUENCES",
    "SERIAL",
    "SlotParams",
]

# What a slot uses beyond greedy; a step in which no slot uses anything is one argmax.
RANDOM: Final = 1  # temperature
MIN_P: Final = 2
RANKED: Final = 4  # top_k or top_p: needs a sort
BIASED: Final = 8
PENALISED: Final = 16
BANNED: Final = 32  # min_tokens or bad sequences
SEQUENCES: Final = 64  # bad sequences: what is banned depends on the ids sampled before
LOGPROBS: Final = 128
PROMPT_ONLY: Final = 256  # some wanted logits are not there to sample from: prompt_logprobs, max_tokens == 0
PROCESSED: Final = 512  # logits processors: what they do depends on the ids sampled before
EDITED: Final = BIASED | PENALISED | BANNED | PROCESSED
SERIAL: Final = PENALISED | SEQUENCES | PROCESSED  # lines of a row cannot be chosen without knowing those before


class SlotParams:
    """Host columns [num_slots], read with the slots of a step's lines. A closed slot reads as plain greedy."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.uses = np.zeros(num_slots, dtype=np.int64)  # the bits above
        self.num_prompt_tokens = np.zeros(num_slots, dtype=np.int64)
        self.samples_from = np.zeros(num_slots, dtype=np.int64)  # no id is sampled from logits before this position
        self.num_logprobs = np.full(num_slots, -1, dtype=np.int64)  # -1: none asked
        self.num_prompt_logprobs = np.full(num_slots, -1, dtype=np.int64)
        self.filters = np.zeros((num_slots, 4))  # temperature, log of min_p, top_k, top_p
        self._counter = np.zeros((num_slots, 3), dtype=np.int64)  # seed low, seed high, choice
        self._prompts: dict[int, NDArray[np.int64]] = {}  # of slots with prompt_logprobs

    def open(self, opened: Opened) -> None:
        slot, sampling = opened.slot, opened.sampling
        num_known = len(opened.history) // 4
        top_k = min(sampling.top_k, self._vocab_size) or self._vocab_size
        log_min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        scored = sampling.prompt_logprobs is not None
        self.uses[slot] = (
            RANDOM * (sampling.temperature > 0)
            | MIN_P * (sampling.min_p > 0)
            | RANKED * (top_k < self._vocab_size or sampling.top_p < 1)
            | BIASED * TokenBias.wanted(sampling)
            | PENALISED * Penalties.wanted(sampling)
            | BANNED * Bans.wanted(sampling)
            | SEQUENCES * Bans.has_sequences(sampling)
            | LOGPROBS * (sampling.logprobs is not None)
            | PROCESSED * bool(opened.processors)
            | PROMPT_ONLY * (scored or sampling.max_tokens == 0)
        )
        self.num_prompt_tokens[slot] = opened.num_prompt_tokens
        self.samples_from[slot] = sys.maxsize if sampling.max_tokens == 0 else num_known - 1 if scored else 0
        self.num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.num_prompt_logprobs[slot] = -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs
        self.filters[slot] = (sampling.temperature, log_min_p, top_k, sampling.top_p)
        self._counter[slot] = (sampling.seed & 0xFFFFFFFF, sampling.seed >> 32, sampling.choice)
        if scored:
            known = np.frombuffer(opened.history, dtype="<u4")
            self._prompts[slot] = known[: opened.num_prompt_tokens].astype(np.int64)

    def close(self, slot: int) -> None:
        self.uses[slot] = 0
        self.samples_from[slot] = 0
        self.num_logprobs[slot] = -1
        self.num_prompt_logprobs[slot] = -1
        self._prompts.pop(slot, None)

    def prompt_token(self, slot: int, position: int) -> int:
        """The prompt's id at `position` of a slot that is open with prompt_logprobs."""
        return int(self._prompts[slot][position])

    def uniforms(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The random numbers [n] of the tokens that follow `positions`. They count from the first output token, so
        that a resumed sequence goes on where it was. Drawn on the host: the same on every device."""
        low, high, choice = self._counter[slots].T
        output = (positions + 1 - self.num_prompt_tokens[slots]) & 0xFFFFFFFF
        drawn: NDArray[np.float64] = uniform(
            np, seed_low=low, seed_high=high, position=output, choice=choice, lane=np.zeros_like(choice)
        )
        return drawn
