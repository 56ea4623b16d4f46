"""The sampler, through its door: open, sample, close."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat.torch as torch
import numpy as np
import pytest

from tickertape.core.batch import LAST, Masks, Opened, Row, StepOutput
from tickertape.core.request import SamplingParams, pack_tokens
from tickertape.core.sampling import Sampler

NAMESPACES = {"numpy": np, "torch": torch}
V = 40


@pytest.fixture(params=list(NAMESPACES))
def xp(request: pytest.FixtureRequest) -> Any:
    return NAMESPACES[request.param]


class Bench:
    """A sampler and the text of its slots; one step is one line per slot unless rows are given."""

    def __init__(self, xp: Any, vocab_size: int = V, num_slots: int = 8) -> None:
        self.xp = xp
        self.sampler = Sampler(xp, num_slots, vocab_size)
        self.text: dict[int, list[int]] = {}

    def open(
        self, slot: int = 0, history: Sequence[int] = (1, 2, 3), num_prompt: int | None = None, **params: Any
    ) -> None:
        sampling = SamplingParams(**({"max_tokens": 100, "seed": 7, "temperature": 0.0} | params))
        known = pack_tokens(list(history))
        self.sampler.open(Opened(slot, sampling, known, len(history) if num_prompt is None else num_prompt))
        self.text[slot] = list(history)

    def run(self, rows: Sequence[Row], logits: Any, masks: Any = None) -> StepOutput:
        bits = None if masks is None else Masks(self.xp.asarray(masks))
        return self.sampler.sample(tuple(rows), self.xp.asarray(np.asarray(logits, dtype=np.float32)), bits)

    def step(self, logits: Any, slots: Sequence[int] = (0,), masks: Any = None) -> StepOutput:
        rows = [Row(slot, (LAST,), len(self.text[slot]) - 1, 1) for slot in slots]
        out = self.run(rows, logits, masks)
        for slot, tokens in zip(slots, out.tokens, strict=True):
            self.text[slot].extend(tokens)
        return out

    def token(self, logits: Any, masks: Any = None) -> int:
        out = self.step([logits], masks=masks)
        assert not out.errors
        ((token,),) = out.tokens
        return token


def peaked(*values: tuple[int, float], fill: float = -9.0, size: int = V) -> list[float]:
    row = [fill] * size
    for token, value in values:
        row[token] = value
    return row


def mask(*allowed: int, size: int = V) -> Any:
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def drawn_ids(bench: Bench, logits: Any, n: int) -> set[int]:
    return {bench.token(logits) for _ in range(n)}


# ---- greedy and the shape of a step


def test_greedy_takes_the_lowest_id_among_equals(xp: Any) -> None:
    bench = Bench(xp)
    bench.open()
    assert bench.token(peaked((9, 4.0), (30, 4.0), (5, 3.0))) == 9


def test_rows_in_the_middle_of_a_prompt_get_nothing(xp: Any) -> None:
    bench = Bench(xp)
    for slot in (0, 1, 2):
        bench.open(slot)
    rows = [Row(0, (3,), 2, 1), Row(1, (1, 2), 0, 0), Row(2, (3,), 2, 1)]
    out = bench.run(rows, [peaked((4, 1.0)), peaked((6, 1.0))])
    assert out.tokens == [[4], [], [6]]
    assert out.logprobs is None
    assert out.errors == {}


def test_an_empty_step(xp: Any) -> None:
    assert Bench(xp).run([], np.zeros((0, V))).tokens == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_last_holds_what_each_slot_sampled(xp: Any, temperature: float) -> None:
    bench = Bench(xp)
    bench.open(2, temperature=temperature)
    bench.open(5, temperature=temperature)
    out = bench.step([peaked((7, 40.0)), peaked((8, 40.0))], slots=(5, 2))
    assert out.tokens == [[7], [8]]
    assert bench.sampler.last.tolist()[2] == 8
    assert bench.sampler.last.tolist()[5] == 7


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_logits_of_any_float_are_read_and_not_changed(dtype: str, temperature: float) -> None:
    bench = Bench(torch)
    bench.open(temperature=temperature, logit_bias=((4, -100.0),))
    logits = torch.asarray([peaked((4, 40.0), (6, 30.0))], dtype=getattr(torch, dtype))
    before = logits.tolist()
    assert bench.sampler.sample((Row(0, (3,), 2, 1),), logits, None).tokens == [[6]]
    assert logits.tolist() == before


def test_shapes_that_do_not_fit_are_refused(xp: Any) -> None:
    bench = Bench(xp)
    bench.open()
    with pytest.raises(ValueError, match=r"logits are \(2, 40\), the rows want \(1, 40\)"):
        bench.run([Row(0, (3,), 2, 1)], np.zeros((2, V)))
    with pytest.raises(ValueError, match=r"masks are \(1, 3\), the rows want \(1, 2\)"):
        bench.run([Row(0, (3,), 2, 1)], np.zeros((1, V)), np.zeros((1, 3), dtype=np.int32))


# ---- seeds and company


def stream(xp: Any, company: Sequence[dict[str, Any]], me: dict[str, Any], at: int, n: int = 6) -> tuple[Any, ...]:
    """Ids and logprobs of one sequence over n steps, among others."""
    bench = Bench(xp, 300)
    kinds = [*company[:at], me, *company[at:]]
    for slot, kind in enumerate(kinds):
        bench.open(slot, **kind)
    found: list[Any] = []
    for step in range(n):
        mine = np.random.default_rng(100 + step).normal(size=300) * 3
        others = np.random.default_rng(step).normal(size=(len(kinds), 300)) * 3
        others[at] = mine
        out = bench.step(others, slots=range(len(kinds)))
        found.append(out.tokens[at])
        if out.logprobs is not None and out.logprobs.counts[at]:
            line = sum(out.logprobs.counts[:at])
            found.append([out.logprobs.ids[line, :3].tolist(), out.logprobs.values[line, :3].tolist()])
    return tuple(found)


COMPANY = (
    {"temperature": 1.0, "top_p": 0.5, "seed": 3},
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.8, "min_p": 0.1, "repetition_penalty": 1.3, "logit_bias": ((5, 9.0),)},
    {"temperature": 1.0, "top_k": 2, "min_tokens": 3, "stop_tokens": (4,), "bad_tokens": ((1, 2), (3,))},
)


@pytest.mark.parametrize(
    "me",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.3, "top_p": 0.9, "logprobs": 2},
        {"temperature": 0.9, "min_p": 0.02, "top_k": 50},
        {"temperature": 1.0, "frequency_penalty": 0.7, "logprobs": 2},
    ],
    ids=str,
)
def test_a_row_does_not_see_its_company(xp: Any, me: dict[str, Any]) -> None:
    alone = stream(xp, [], me, 0)
    assert stream(xp, COMPANY, me, 0) == alone
    assert stream(xp, COMPANY, me, 4) == alone
    assert stream(xp, COMPANY[:2], me, 1) == alone


def test_both_namespaces_give_the_same_ids() -> None:
    for me in COMPANY:
        by_numpy, by_torch = (stream(xp, [], {k: v for k, v in me.items() if k != "logprobs"}, 0) for xp in (np, torch))
        assert by_numpy == by_torch


def test_seed_and_choice_decide(xp: Any) -> None:
    def ids(**params: Any) -> str:
        return str(stream(xp, [], {"temperature": 1.5} | params, 0, n=10))

    assert ids(seed=2**64 - 1) == ids(seed=2**64 - 1)
    assert len({ids(seed=1), ids(seed=2), ids(seed=1 << 32), ids(seed=1, choice=1)}) == 4


def test_a_resumed_sequence_goes_on_where_it_was(xp: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(8, V))
    kind: dict[str, Any] = {"temperature": 1.2, "frequency_penalty": 0.5, "bad_tokens": ((3, 5), (7, 8, 9))}
    whole, resumed = Bench(xp), Bench(xp)
    whole.open(0, (1, 2, 3), **kind)
    for line in logits:
        whole.token(line)
    resumed.open(4, whole.text[0][:7], num_prompt=3, **kind)
    for line in logits[4:]:
        resumed.step([line], slots=(4,))
    assert resumed.text[4] == whole.text[0]


# ---- each parameter, where the reference does not look


def test_an_id_of_probability_zero_is_never_drawn(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(temperature=5.0)
    assert drawn_ids(bench, peaked((3, 0.0), (20, 0.0), fill=-math.inf), 60) == {3, 20}


def test_tiny_and_huge_temperatures(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, temperature=1e-6)
    bench.open(1, temperature=1e6)
    logits = peaked((5, 1.001), (6, 1.0))
    outs = [bench.step([logits, logits], slots=(0, 1)).tokens for _ in range(30)]
    assert {token for (token,), _ in outs} == {5}
    assert len({token for _, (token,) in outs}) > 12


def test_ties_with_the_last_kept_stay(xp: Any) -> None:
    logits = peaked((3, 2.0), (4, 1.0), (9, 1.0), (30, 1.0), (31, 0.5))
    for kind in ({"top_k": 2}, {"top_p": 0.5}):
        bench = Bench(xp)
        bench.open(temperature=1.0, **kind)
        assert drawn_ids(bench, logits, 80) == {3, 4, 9, 30}


def test_min_p_is_relative_to_the_most_likely(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(temperature=1.0, min_p=0.5)
    logits = peaked((3, 2.0), (4, 2.0 + math.log(0.51)), (9, 2.0 + math.log(0.49)))
    assert drawn_ids(bench, logits, 60) == {3, 4}


def test_penalties_follow_what_was_sampled(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, (5, 5, 5), frequency_penalty=0.4)  # the prompt does not count
    logits = peaked((5, 2.0), (6, 1.7), (7, 1.5))
    assert [bench.token(logits) for _ in range(6)] == [5, 6, 5, 7, 6, 5]


def test_presence_is_charged_once_and_replayed_output_counts(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, (1, 5, 5, 6), num_prompt=1, presence_penalty=1.0)
    assert bench.token(peaked((5, 2.0), (6, 1.5), (7, 0.9))) == 5
    assert bench.token(peaked((5, 2.0), (6, 2.5), (7, 1.6))) == 7


def test_repetition_reads_the_prompt_and_turns_with_the_sign(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, (5, 6), repetition_penalty=2.0)
    assert bench.token(peaked((5, 2.0), (7, 1.1))) == 7
    assert bench.token(peaked((5, -1.0), (6, -1.2), (8, -1.9), fill=-9.0)) == 8


def test_bad_sequences_read_prompt_and_output(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, (1, 2), bad_tokens=((2, 7), (1, 2, 8), (9,), (6, 6), (0, 1, 2, 5)))
    logits = peaked((9, 6.0), (7, 5.0), (8, 4.0), (6, 3.0), (5, 2.0))
    assert bench.token(logits) == 6  # 7 after 2, 8 after 1 2 and 9 are banned
    assert bench.token(logits) == 7  # 6 after 6 would be, 7 is free again
    assert bench.token(peaked((6, 3.0))) == 6
    assert bench.token(peaked((6, 3.0), (5, 2.0))) == 5


def test_stop_tokens_wait_for_min_tokens(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0, (1, 2, 3, 3), num_prompt=3, min_tokens=3, stop_tokens=(9, 10))
    logits = peaked((9, 5.0), (10, 4.0), (4, 1.0))
    assert [bench.token(logits) for _ in range(3)] == [4, 4, 9]


def test_ids_outside_the_vocabulary_are_ignored(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(
        logit_bias=((V, 5.0),),
        bad_tokens=((V + 1,), (3, V)),
        stop_tokens=(V + 2,),
        min_tokens=5,
        allowed_tokens=(4, V),
        repetition_penalty=1.5,
        history=(V + 3, 3),
    )
    assert bench.token(peaked((9, 5.0))) == 4


def test_masks_apply_in_row_order(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0)
    bench.open(1, temperature=1.0, top_p=0.9)
    bench.open(2)
    logits = peaked((0, 5.0), (31, 4.0), (32, 3.0), (39, 2.0))
    masks = np.stack([mask(31, 39), mask(32), mask(*range(V))])
    assert bench.step([logits] * 3, slots=(0, 1, 2), masks=masks).tokens == [[31], [32], [0]]


def test_every_bit_of_a_mask_is_its_own(xp: Any) -> None:
    rng = np.random.default_rng(0)
    logits, allowed = rng.normal(size=(8, V)), rng.random((8, V)) < 0.5
    bench = Bench(xp)
    for slot in range(8):
        bench.open(slot)
    masks = np.stack([mask(*np.flatnonzero(line).tolist()) for line in allowed])
    out = bench.step(logits, slots=range(8), masks=masks)
    assert out.tokens == [[int(best)] for best in np.where(allowed, logits, -np.inf).argmax(axis=1)]


# ---- errors stay in their row


@pytest.mark.parametrize("kind", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (peaked((3, math.nan)), "NaN"),
        ([math.nan] * V, "NaN"),
        (peaked((3, math.inf)), "infinity"),
        (peaked(fill=-math.inf), "masked"),
    ],
    ids=["one NaN", "all NaN", "+inf", "all -inf"],
)
def test_a_row_without_a_choice_fails_alone(xp: Any, kind: dict[str, Any], broken: Any, message: str) -> None:
    bench = Bench(xp)
    for slot in (0, 1, 2):
        bench.open(slot, **kind)
    good = peaked((4, 30.0))
    out = bench.step([good, broken, good], slots=(0, 1, 2))
    assert out.tokens == [[4], [], [4]]
    assert list(out.errors) == [1]
    assert message in out.errors[1]
    assert "\n" not in out.errors[1]
    assert all(0 <= token < V for token in bench.sampler.last.tolist())


def test_masks_that_leave_nothing_and_nan_behind_a_mask(xp: Any) -> None:
    bench = Bench(xp)
    bench.open(0)
    bench.open(1)
    bench.open(2, allowed_tokens=())
    bench.open(3, temperature=1.0, allowed_tokens=(5,))
    logits = [peaked((4, 3.0)), peaked((4, math.nan), (5, 1.0)), peaked((4, 3.0)), peaked((4, math.inf))]
    masks = np.stack([mask(), mask(5), mask(*range(V)), mask(*range(V))])
    out = bench.step(logits, slots=(0, 1, 2, 3), masks=masks)
    assert out.tokens == [[], [], [], []]
    assert ["masked" in out.errors[slot] for slot in range(4)] == [True, False, True, False]


# ---- slots are reused


def test_nothing_of_the_last_tenant_stays(xp: Any) -> None:
    everything: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 1,
        "min_p": 0.9,
        "logit_bias": ((6, 50.0),),
        "bad_tokens": ((5,), (3, 4)),
        "min_tokens": 50,
        "stop_tokens": (4,),
        "repetition_penalty": 9.0,
        "frequency_penalty": 2.0,
        "logprobs": 3,
        "prompt_logprobs": 2,
    }
    logits = peaked((4, 3.0), (5, 2.0), (6, 1.0))
    for close in (True, False):
        bench = Bench(xp)
        bench.open(0, **everything)
        assert bench.token(logits) == 6
        if close:
            bench.sampler.close(0)
            out = bench.step([logits])  # a row whose sequence has ended meanwhile: dropped, but not a failure
            assert (out.tokens, out.logprobs, out.errors) == ([[4]], None, {})
        bench.open(0)
        out = bench.step([logits])
        assert out.tokens == [[4]]
        assert out.logprobs is None
        # The wide rows were given back: a new tenant of theirs starts from nothing too.
        bench.open(0, presence_penalty=0.1, logit_bias=((7, 0.5),))
        assert [bench.token(logits) for _ in range(2)] == [4, 4]


def test_wide_rows_are_taken_by_need_and_given_back(xp: Any) -> None:
    bench = Bench(xp, num_slots=6)
    for slot in (5, 0, 3, 1, 2):
        bench.open(slot, logit_bias=((slot + 10, 50.0),), presence_penalty=20.0)
    for slot in (0, 3):
        bench.sampler.close(slot)
    bench.open(4, logit_bias=((20, 50.0),), presence_penalty=20.0)
    bench.open(0, logit_bias=((21, 50.0),), presence_penalty=20.0)
    logits = [peaked((30, 35.0), fill=0.0)] * 5
    slots = (4, 0, 1, 2, 5)
    assert bench.step(logits, slots=slots).tokens == [[20], [21], [11], [12], [15]]
    assert bench.step(logits, slots=slots).tokens == [[30]] * 5
