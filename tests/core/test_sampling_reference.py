"""The sampler against sampling written as slowly and plainly as it can be, and against the distribution itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat.torch as torch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickertape.core.batch import LAST, Opened, Row, StepOutput
from tickertape.core.philox import uniform
from tickertape.core.request import SamplingParams, pack_tokens
from tickertape.core.sampling import Sampler

NAMESPACES = {"numpy": np, "torch": torch}

_NEAR = 1e-9  # how close to an edge of the distribution both neighbours are right


def edited(logits: Sequence[float], params: SamplingParams, history: Sequence[int], num_prompt: int) -> list[float]:
    """The logits after bans, bias and penalties; `history` is the text so far."""
    x = list(logits)
    output = list(history[num_prompt:])
    for token, bias in params.logit_bias:
        x[token] += bias
    for token in range(len(x)):
        if params.allowed_tokens is not None and token not in params.allowed_tokens:
            x[token] = -math.inf
        if token in params.stop_tokens and len(output) < params.min_tokens:
            x[token] = -math.inf
        for *before, last in params.bad_tokens:
            if token == last and list(history[len(history) - len(before) :]) == before:
                x[token] = -math.inf
        if token in history:
            positive = x[token] > 0
            x[token] = x[token] / params.repetition_penalty if positive else x[token] * params.repetition_penalty
        x[token] -= params.frequency_penalty * output.count(token)
        x[token] -= params.presence_penalty * (token in output)
    return x


def kept(x: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """The probabilities of the ids that may be drawn, ascending by id, after temperature, min_p, top_k and top_p."""
    greatest = max(x)
    weights = {token: math.exp((value - greatest) / params.temperature) for token, value in enumerate(x)}
    scaled = {token: (value - greatest) / params.temperature for token, value in enumerate(x)}
    keep = {token for token in scaled if params.min_p == 0 or weights[token] >= params.min_p}
    if params.top_k:
        best = sorted((scaled[token] for token in keep), reverse=True)[: params.top_k]
        keep = {token for token in keep if scaled[token] >= best[-1]}
    if params.top_p < 1:
        total, mass = math.fsum(weights[token] for token in keep), 0.0
        for token in sorted(keep, key=lambda token: -scaled[token]):
            mass += weights[token]
            if mass >= params.top_p * total * (1 - 1e-12):
                keep = {other for other in keep if scaled[other] >= scaled[token]}
                break
    total = math.fsum(weights[token] for token in keep)
    return {token: weights[token] / total for token in sorted(keep) if weights[token] > 0}


def right_ids(x: Sequence[float], params: SamplingParams, uniform: float) -> set[int]:
    """The id that must come out; two where `uniform` is too near an edge to tell."""
    if params.temperature == 0:
        return {list(x).index(max(x))}
    found, running = set(), 0.0
    for token, probability in kept(x, params).items():
        if running - _NEAR <= uniform <= running + probability + _NEAR:
            found.add(token)
        running += probability
    return found


# ---- the sampler, one line per slot and step


class Bench:
    def __init__(self, xp: Any, vocab_size: int, num_slots: int) -> None:
        self.xp = xp
        self.sampler = Sampler(xp, num_slots, vocab_size)
        self.text: list[list[int]] = [[]] * num_slots

    def open(self, slot: int, history: Sequence[int], num_prompt: int, params: SamplingParams) -> None:
        self.sampler.open(Opened(slot, params, pack_tokens(list(history)), num_prompt))
        self.text[slot] = list(history)

    def step(self, logits: Any) -> StepOutput:
        rows = tuple(Row(slot, (LAST,), len(text) - 1, 1) for slot, text in enumerate(self.text))
        out = self.sampler.sample(rows, self.xp.asarray(np.asarray(logits)), None)
        for text, tokens in zip(self.text, out.tokens, strict=True):
            text.extend(tokens)
        return out


logit = st.integers(-12, 12).map(lambda step: step / 4)  # coarse, so that ties are common
small_id = st.integers(0, 11)
all_params = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 3, 11, 50]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.05, 0.531, 0.913]),
    min_p=st.sampled_from([0.0, 0.0, 0.0625, 0.37, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.25]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.0, 0.75]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    logit_bias=st.dictionaries(small_id, st.sampled_from([-100.0, -0.5, 2.0])).map(lambda d: tuple(d.items())),
    allowed_tokens=st.none() | st.sets(small_id, min_size=8).map(tuple),
    bad_tokens=st.lists(st.lists(small_id, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 3),
    stop_tokens=st.sets(small_id, max_size=2).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2),
)


def expected_uniform(params: SamplingParams, num_output: int) -> float:
    halves = {"seed_low": params.seed % 2**32, "seed_high": params.seed // 2**32}
    lanes = halves | {"position": num_output, "choice": params.choice, "lane": 0}
    return float(uniform(np, **{name: np.array([value]) for name, value in lanes.items()})[0])


@settings(max_examples=200, deadline=None)
@given(
    params=st.lists(all_params, min_size=1, max_size=4),
    data=st.data(),
    name=st.sampled_from(list(NAMESPACES)),
    vocab_size=st.sampled_from([12, 300]),
)
def test_equals_the_reference(params: list[SamplingParams], data: st.DataObject, name: str, vocab_size: int) -> None:
    bench = Bench(NAMESPACES[name], vocab_size, len(params))
    num_prompt = []
    for slot, sampling in enumerate(params):
        history = data.draw(st.lists(small_id, min_size=1, max_size=6))
        num_prompt.append(data.draw(st.integers(1, len(history))))
        bench.open(slot, history, num_prompt[slot], sampling)
    for _ in range(3):
        low = data.draw(st.lists(st.lists(logit, min_size=12, max_size=12), min_size=len(params), max_size=len(params)))
        rows = [row + [-2.0 - token % 7 for token in range(vocab_size - 12)] for row in low]
        texts = [list(text) for text in bench.text]
        out = bench.step(rows)
        for slot, sampling in enumerate(params):
            x = edited(rows[slot], sampling, texts[slot], num_prompt[slot])
            if max(x) == -math.inf:
                assert out.tokens[slot] == []
                assert "masked" in out.errors[slot]
                return
            drawn = expected_uniform(sampling, len(texts[slot]) - num_prompt[slot])
            assert slot not in out.errors
            assert len(out.tokens[slot]) == 1
            assert set(out.tokens[slot]) <= right_ids(x, sampling, drawn)


@pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)
@pytest.mark.parametrize(
    "kind",
    [{}, {"temperature": 2.0}, {"top_p": 0.8}, {"top_k": 6}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9}],
    ids=str,
)
def test_the_draws_follow_the_distribution(xp: Any, kind: dict[str, Any]) -> None:
    vocab_size, num_slots, num_steps = 300, 64, 40
    logits = np.random.default_rng(5).normal(size=vocab_size).astype(np.float32) * 2
    bench = Bench(xp, vocab_size, num_slots)
    for slot in range(num_slots):
        bench.open(slot, [1], 1, SamplingParams(max_tokens=99, seed=slot << 30, **kind))
    counts = np.zeros(vocab_size)
    for _ in range(num_steps):
        for (token,) in bench.step(np.tile(logits, (num_slots, 1))).tokens:
            counts[token] += 1
    probabilities = kept(logits.tolist(), SamplingParams(max_tokens=1, seed=0, **kind))
    assert set(np.flatnonzero(counts).tolist()) <= set(probabilities)
    expected = np.array([probabilities.get(token, 0.0) for token in range(vocab_size)]) * num_slots * num_steps
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], expected[~large].sum() or 1e-9)
    degrees = int(large.sum())
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees) + 4  # about 1 in 10000, and the seeds are fixed
