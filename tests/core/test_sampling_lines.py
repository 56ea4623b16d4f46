"""Rows that want several lines, or more than an id: drafts, prompt scoring, log probabilities."""

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
V = 50
LOGITS = np.random.default_rng(3).normal(size=(64, V)).astype(np.float32) * 2  # by position


@pytest.fixture(params=list(NAMESPACES))
def xp(request: pytest.FixtureRequest) -> Any:
    return NAMESPACES[request.param]


def opened(slot: int, history: Sequence[int], num_prompt: int | None = None, **params: Any) -> Opened:
    sampling = SamplingParams(**({"max_tokens": 100, "seed": 11, "temperature": 0.0} | params))
    return Opened(slot, sampling, pack_tokens(list(history)), len(history) if num_prompt is None else num_prompt)


def sampler(xp: Any, *tenants: Opened) -> Sampler:
    made = Sampler(xp, 8, V)
    for tenant in tenants:
        made.open(tenant)
    return made


def run(xp: Any, made: Sampler, rows: Sequence[Row], logits: Any = None, masks: Masks | None = None) -> StepOutput:
    """By default the logits depend on the position alone."""
    if logits is None:
        ends = [row.start + len(row.tokens) for row in rows]
        logits = np.concatenate([LOGITS[end - row.num_logits : end] for row, end in zip(rows, ends, strict=True)])
    return made.sample(tuple(rows), xp.asarray(np.asarray(logits, dtype=np.float32)), masks)


def plain(xp: Any, n: int, history: Sequence[int] = (1, 2, 3), **params: Any) -> list[int]:
    """n ids, one per step."""
    made = sampler(xp, opened(0, history, **params))
    found: list[int] = []
    for position in range(len(history) - 1, len(history) - 1 + n):
        out = run(xp, made, [Row(0, (LAST,), position, 1)])
        found.extend(out.tokens[0])
    return found


# ---- drafts

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_p": 0.8, "logit_bias": ((4, 2.0),)},
    {"temperature": 1.0, "min_tokens": 3, "stop_tokens": tuple(range(0, V, 2))},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_drafts_give_what_single_steps_give(xp: Any, kind: dict[str, Any], num_right: int) -> None:
    expected = plain(xp, 5, **kind)
    drafts = expected[1:4]
    if num_right < 3:
        drafts[num_right] = (drafts[num_right] + 1) % V
    made = sampler(xp, opened(0, (1, 2, 3), **kind))
    run(xp, made, [Row(0, (3,), 2, 1)])
    out = run(xp, made, [Row(0, (LAST, *drafts), 3, 4)])
    assert out.tokens == [expected[1 : num_right + 2]]
    assert made.last.tolist()[0] == expected[num_right + 1]


def test_a_right_draft_behind_a_wrong_one_is_not_confirmed(xp: Any) -> None:
    expected = plain(xp, 4)
    made = sampler(xp, opened(0, (1, 2, 3)))
    out = run(xp, made, [Row(0, (3, (expected[0] + 1) % V, expected[1], expected[2]), 2, 4)])
    assert out.tokens == [expected[:1]]


@pytest.mark.parametrize(
    "kind",
    [{"frequency_penalty": 1.5}, {"repetition_penalty": 1.5}, {"presence_penalty": 1.0}, {"bad_tokens": ((7, 8),)}],
    ids=str,
)
def test_rows_with_a_memory_accept_one_id_and_go_on_right(xp: Any, kind: dict[str, Any]) -> None:
    expected = plain(xp, 4, **kind)
    made = sampler(xp, opened(0, (1, 2, 3), **kind))
    assert run(xp, made, [Row(0, (3, *expected[:2]), 2, 3)]).tokens == [expected[:1]]
    assert run(xp, made, [Row(0, (LAST, *expected[1:3]), 3, 3)]).tokens == [expected[1:2]]
    assert run(xp, made, [Row(0, (LAST,), 4, 1)]).tokens == [expected[2:3]]


def test_drafts_among_other_rows_with_masks_and_logprobs(xp: Any) -> None:
    expected = plain(xp, 3, (1, 2, 3))
    made = sampler(xp, opened(0, (5,)), opened(1, (1, 2, 3), logprobs=1), opened(2, (9, 9), temperature=1.0))
    rows = [Row(0, (5,), 0, 1), Row(2, (9,), 0, 0), Row(1, (3, *expected[:2]), 2, 3), Row(2, (9,), 1, 1)]
    bits = np.full((5, 2), -1, dtype=np.int32)
    bits[3] = 0  # the last line of the drafts' row
    out = run(xp, made, rows, masks=Masks(xp.asarray(bits)))
    assert out.tokens[2] == []
    assert list(out.errors) == [1]
    assert out.logprobs is None
    assert len(out.tokens[0]) == len(out.tokens[3]) == 1

    bits[3] = -1
    out = run(xp, made, rows, masks=Masks(xp.asarray(bits)))
    assert out.tokens[2] == expected
    assert out.logprobs is not None
    assert out.logprobs.counts == [0, 0, 3, 0]
    assert out.logprobs.ids[:, 0].tolist() == expected


def test_a_fault_behind_a_wrong_draft_is_nobodys(xp: Any) -> None:
    expected = plain(xp, 2)
    made = sampler(xp, opened(0, (1, 2, 3)))
    logits = LOGITS[2:5].copy()
    logits[2] = math.nan
    wrong = (expected[1] + 1) % V
    out = run(xp, made, [Row(0, (3, expected[0], wrong), 2, 3)], logits)
    assert (out.tokens, out.errors) == ([expected], {})


# ---- log probabilities


def reference_line(logits: Any, token: int, num_top: int) -> tuple[list[int], list[float], int]:
    x = [float(value) for value in logits]
    log_total = math.log(math.fsum(math.exp(value) for value in x))
    order = sorted(range(len(x)), key=lambda other: (-x[other], other))[:num_top]
    ids = [token, *order]
    return ids, [x[other] - log_total for other in ids], 1 + sum(value > x[token] for value in x)


def check_line(out: StepOutput, line: int, logits: Any, token: int, num_top: int) -> None:
    assert out.logprobs is not None
    ids, values, rank = reference_line(logits, token, num_top)
    assert out.logprobs.ids[line, : num_top + 1].tolist() == ids
    assert out.logprobs.values[line, : num_top + 1].tolist() == pytest.approx(values, abs=1e-5)
    assert int(out.logprobs.ranks[line]) == rank


@pytest.mark.parametrize("num_top", [0, 1, 5, V])
def test_logprobs_are_of_the_models_own_distribution(xp: Any, num_top: int) -> None:
    edits: dict[str, Any] = {"temperature": 2.0, "top_k": 3, "logit_bias": ((4, 3.0),), "presence_penalty": 1.0}
    made = sampler(xp, opened(0, (1, 2), logprobs=num_top, allowed_tokens=(6, 7, 8), **edits))
    logits = LOGITS[1].copy()
    logits[[9, 4, 30]] = logits.max()  # ties: the lowest id first
    out = run(xp, made, [Row(0, (2,), 1, 1)], [logits])
    assert out.tokens[0][0] in (6, 7, 8)
    check_line(out, 0, logits, out.tokens[0][0], num_top)


def test_top_ids_the_model_gave_no_chance(xp: Any) -> None:
    made = sampler(xp, opened(0, (1,), logprobs=4))
    logits = np.full(V, -np.inf, dtype=np.float32)
    logits[[7, 3]] = 1.0
    out = run(xp, made, [Row(0, (1,), 0, 1)], [logits])
    assert out.logprobs is not None
    assert out.logprobs.ids.tolist() == [[3, 3, 7, 0, 1]]
    assert out.logprobs.values.tolist()[0][3:] == [-math.inf, -math.inf]


def test_lines_belong_to_the_rows_that_asked(xp: Any) -> None:
    made = sampler(xp, opened(0, (1, 2), logprobs=2), opened(1, (1, 2)), opened(2, (1, 2), logprobs=4))
    out = run(xp, made, [Row(2, (2,), 1, 1), Row(1, (2,), 1, 1), Row(0, (2,), 1, 1)])
    assert out.logprobs is not None
    assert out.logprobs.counts == [1, 0, 1]
    assert tuple(out.logprobs.ids.shape) == (2, 5)
    assert tuple(out.logprobs.ranks.shape) == (2,)
    check_line(out, 0, LOGITS[1], out.tokens[0][0], 4)
    check_line(out, 1, LOGITS[1], out.tokens[2][0], 2)
    assert run(xp, made, [Row(1, (2,), 2, 1)]).logprobs is None


# ---- prompt scoring


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
def test_prompt_positions_are_scored_and_the_last_samples(xp: Any, chunk: int) -> None:
    prompt = [4, 9, 2, 7, 30, 5]
    made = sampler(xp, opened(3, prompt, prompt_logprobs=2, logprobs=1))
    lines = 0
    for start in range(0, 6, chunk):
        tokens = prompt[start : start + chunk]
        out = run(xp, made, [Row(3, tokens, start, len(tokens))])
        ends_prompt = start + len(tokens) == 6
        assert len(out.tokens[0]) == ends_prompt
        assert out.logprobs is not None
        assert out.logprobs.counts == [len(tokens)]
        for line, position in enumerate(range(start, start + len(tokens))):
            if position < 5:
                check_line(out, line, LOGITS[position], prompt[position + 1], 2)
            else:
                check_line(out, line, LOGITS[position], out.tokens[0][0], 1)
            lines += 1
    assert lines == 6
    out = run(xp, made, [Row(3, (LAST,), 6, 1)])
    assert out.tokens == [plain(xp, 2, prompt)[1:]]


def test_the_sampled_id_has_no_line_when_only_the_prompt_was_asked(xp: Any) -> None:
    made = sampler(xp, opened(0, (4, 9, 2), prompt_logprobs=0))
    out = run(xp, made, [Row(0, (4, 9, 2), 0, 3)])
    assert out.logprobs is not None
    assert out.logprobs.counts == [2]
    assert out.logprobs.ids.tolist() == [[9], [2]]
    assert out.tokens == [plain(xp, 1, (4, 9, 2))]


def test_max_tokens_zero_scores_and_never_samples(xp: Any) -> None:
    made = sampler(xp, opened(0, (4, 9, 2), prompt_logprobs=1, max_tokens=0, logprobs=1), opened(1, (4,), max_tokens=0))
    out = run(xp, made, [Row(0, (4, 9, 2), 0, 3), Row(1, (4,), 0, 1)])
    assert out.tokens == [[], []]
    assert out.logprobs is not None
    assert out.logprobs.counts == [2, 0]
    assert out.errors == {}


def test_replayed_output_is_neither_scored_nor_sampled_again(xp: Any) -> None:
    history = [4, 9, *plain(xp, 2, (4, 9))]
    made = sampler(xp, opened(0, history, num_prompt=2, prompt_logprobs=0))
    out = run(xp, made, [Row(0, history, 0, 4)])
    assert out.tokens == [plain(xp, 3, (4, 9))[2:]]
    assert out.logprobs is not None
    assert out.logprobs.ids.tolist() == [[9]]


def test_drafts_after_a_scored_prompt(xp: Any) -> None:
    expected = plain(xp, 4, (4, 9))
    made = sampler(xp, opened(0, (4, 9), prompt_logprobs=0))
    run(xp, made, [Row(0, (4, 9), 0, 2)])
    assert run(xp, made, [Row(0, (LAST, *expected[1:3]), 2, 3)]).tokens == [expected[1:]]


def test_a_broken_position_of_a_prompt_fails_its_row_alone(xp: Any) -> None:
    made = sampler(xp, *(opened(slot, (4, 9, 2), prompt_logprobs=1) for slot in (0, 1, 2)))
    logits = np.concatenate([LOGITS[:3]] * 3)
    logits[4, 7] = math.nan
    out = run(xp, made, [Row(slot, (4, 9, 2), 0, 3) for slot in (0, 1, 2)], logits)
    assert list(out.errors) == [1]
    assert out.tokens[1] == []
    assert out.tokens[0] == out.tokens[2] == plain(xp, 1, (4, 9, 2))
    assert out.logprobs is not None
    assert out.logprobs.counts == [2, 0, 2]
    check_line(out, 2, LOGITS[0], 9, 1)


def test_a_row_that_fails_at_its_last_position_has_no_lines(xp: Any) -> None:
    made = sampler(xp, opened(0, (4, 9, 2), prompt_logprobs=1), opened(1, (4, 9, 2), prompt_logprobs=1))
    logits = np.concatenate([LOGITS[:3]] * 2)
    logits[2] = -math.inf
    out = run(xp, made, [Row(slot, (4, 9, 2), 0, 3) for slot in (0, 1)], logits)
    assert list(out.errors) == [0]
    assert out.logprobs is not None
    assert out.logprobs.counts == [0, 2]


def test_a_closed_slot_is_scored_no_more(xp: Any) -> None:
    made = sampler(xp, opened(0, (4, 9, 2), prompt_logprobs=1), opened(1, (4,), logprobs=1))
    made.close(0)
    out = run(xp, made, [Row(0, (4, 9), 0, 2), Row(1, (4,), 0, 1)])
    assert out.logprobs is not None
    assert out.logprobs.counts == [0, 1]


def test_a_long_prompt_is_scored_in_portions(xp: Any) -> None:
    vocab_size, num_tokens = 9000, 40
    prompt = np.random.default_rng(0).integers(0, vocab_size, num_tokens).tolist()
    logits = np.random.default_rng(1).normal(size=(num_tokens, vocab_size)).astype(np.float32)
    made = Sampler(xp, 1, vocab_size)
    made.open(opened(0, prompt, prompt_logprobs=3))
    out = made.sample((Row(0, prompt, 0, num_tokens),), xp.asarray(logits), None)
    for position in (0, 6, 7, 8, 38):
        check_line(out, position, logits[position], prompt[position + 1], 3)
    assert out.tokens == [[int(logits[-1].argmax())]]
