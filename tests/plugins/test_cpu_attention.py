"""The paged attention kernel against arithmetic written out in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tickertape.plugins.backends.transformers.cpu.attention import KernelAttention, make_attention
from tickertape.plugins.backends.transformers.cpu.team import OpenMPTeam, ThreadTeam, make_team
from tickertape.plugins.backends.transformers.gather import PagedAttention, gather_attention
from tickertape.plugins.backends.transformers.spans import Spans

pytest.importorskip("numba")

TOLERANCE = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@cache
def kernel(dtype: torch.dtype) -> PagedAttention:
    return make_attention(dtype, num_threads=2)


@dataclass(frozen=True)
class Case:
    """Spans as (start, number of tokens), and a model's shape."""

    spans: tuple[tuple[int, int], ...]
    num_kv_heads: int = 2
    group: int = 3
    key_dim: int = 64
    value_dim: int = 64
    block_tokens: int = 16
    window: int = 0
    softcap: float | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0


@dataclass
class Problem:
    case: Case
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    sinks: torch.Tensor | None
    spans: Spans

    def attend(self, attention: PagedAttention) -> torch.Tensor:
        out = torch.full((*self.q.shape[:2], self.case.value_dim), torch.nan, dtype=self.q.dtype)
        attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.spans,
            scale=self.case.key_dim**-0.5,
            softcap=self.case.softcap,
            sinks=self.sinks,
            out=out,
        )
        return out


def make_problem(case: Case) -> Problem:
    """Blocks in a shuffled order. What no span may see is NaN: foreign blocks, the null block, what lies behind a
    window, and the rest of a last block."""
    random = np.random.default_rng(case.seed)
    counts = [-(-(start + num) // case.block_tokens) for start, num in case.spans]
    num_blocks = sum(counts) + 3
    order = iter(random.permutation(num_blocks - 1) + 1)
    tables = np.zeros((len(case.spans), max(counts) + 1), np.int32)
    k = np.full((num_blocks, case.block_tokens, case.num_kv_heads, case.key_dim), np.nan)
    v = np.full((num_blocks, case.block_tokens, case.num_kv_heads, case.value_dim), np.nan)
    for table, (start, num), count in zip(tables, case.spans, counts, strict=True):
        begin = max(0, start - case.window + 1) if case.window else 0
        first = begin // case.block_tokens
        table[first:count] = [next(order) for _ in range(count - first)]
        seen = np.arange(begin, start + num)
        places = table[seen // case.block_tokens], seen % case.block_tokens
        k[places] = random.standard_normal((len(seen), *k.shape[2:]))
        v[places] = random.standard_normal((len(seen), *v.shape[2:]))
    num_tokens = sum(num for _, num in case.spans)
    # As the library hands it over: heads outside, tokens inside.
    q = torch.from_numpy(random.standard_normal((case.num_kv_heads * case.group, num_tokens, case.key_dim)))
    sinks = torch.from_numpy(random.standard_normal(case.num_kv_heads * case.group)) if case.sinks else None
    spans = Spans(
        torch.tensor(np.cumsum([0, *(num for _, num in case.spans)]), dtype=torch.int32),
        torch.tensor([start for start, _ in case.spans], dtype=torch.int32),
        torch.from_numpy(tables),
        case.window,
    )
    return Problem(
        case,
        q.to(case.dtype).transpose(0, 1),
        torch.from_numpy(k).to(case.dtype),
        torch.from_numpy(v).to(case.dtype),
        None if sinks is None else sinks.to(case.dtype),
        spans,
    )


def written_out(problem: Problem) -> NDArray[np.float64]:
    case, block_tokens = problem.case, problem.case.block_tokens
    q, k, v = (tensor.double().numpy() for tensor in (problem.q, problem.k_cache, problem.v_cache))
    out = np.empty((*q.shape[:2], case.value_dim))
    token = 0
    for table, (start, num) in zip(problem.spans.tables.numpy(), case.spans, strict=True):
        for position in range(start, start + num):
            seen = [p for p in range(position + 1) if not case.window or p > position - case.window]
            keys = np.array([k[table[p // block_tokens], p % block_tokens] for p in seen])
            values = np.array([v[table[p // block_tokens], p % block_tokens] for p in seen])
            for head in range(q.shape[1]):
                scores = keys[:, head // case.group] @ q[token, head] * case.key_dim**-0.5
                if case.softcap:
                    scores = case.softcap * np.tanh(scores / case.softcap)
                column = [] if problem.sinks is None else [float(problem.sinks[head])]
                weights = np.exp(np.append(scores, column) - max([*scores, *column]))
                weights /= weights.sum()
                out[token, head] = weights[: len(seen)] @ values[:, head // case.group]
            token += 1
    return out


spans_of_any_kind = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 70), st.sampled_from([447, 511, 512, 513, 1100])),
        st.one_of(st.just(1), st.integers(1, 6), st.sampled_from([22, 65])),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_kernel_equals_the_arithmetic_written_out(data: st.DataObject) -> None:
    """Every dtype, all powers combined, on keys of which any place out of sight is NaN."""
    dtype = data.draw(st.sampled_from([*TOLERANCE]))
    case = Case(
        spans=tuple(data.draw(spans_of_any_kind)),
        num_kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([1, 2, 3, 4, 7])),
        key_dim=data.draw(st.sampled_from([8, 24, 64])),
        value_dim=data.draw(st.sampled_from([8, 12, 48, 64])),
        block_tokens=data.draw(st.sampled_from([1, 3, 16, 64])),
        window=data.draw(st.sampled_from([0, 1, 5, 64, 600])),
        softcap=data.draw(st.sampled_from([None, 0.5, 30.0])),
        sinks=data.draw(st.booleans()),
        dtype=dtype,
        seed=data.draw(st.integers(0, 9)),
    )
    problem = make_problem(case)
    wanted = written_out(problem)
    got = problem.attend(kernel(dtype))
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=0, atol=TOLERANCE[dtype])
    fallback = problem.attend(gather_attention)
    np.testing.assert_allclose(fallback.double().numpy(), wanted, rtol=0, atol=TOLERANCE[dtype])


MIXED = Case(spans=((0, 1), (700, 1), (0, 40), (2000, 3), (90, 1), (530, 100)))


@pytest.mark.parametrize(
    "case",
    [
        MIXED,
        replace(MIXED, window=100, sinks=True),
        replace(MIXED, dtype=torch.bfloat16, softcap=20.0),
        replace(MIXED, dtype=torch.float64, group=1, key_dim=24),
    ],
    ids=["plain", "window", "bfloat16", "float64"],
)
def test_a_span_gives_the_same_bits_in_any_batch(case: Case) -> None:
    problem = make_problem(case)
    attention = kernel(case.dtype)
    together = problem.attend(attention)
    bounds = problem.spans.query_start.tolist()
    for order in ([5, 0, 3], [2], [1, 1, 4]):
        tokens = torch.cat([torch.arange(bounds[i], bounds[i + 1]) for i in order])
        counts = [bounds[i + 1] - bounds[i] for i in order]
        spans = Spans(
            torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32),
            problem.spans.start[order],
            problem.spans.tables[order],
            case.window,
        )
        alone = replace(problem, q=problem.q[tokens], spans=spans).attend(attention)
        assert torch.equal(alone, together[tokens])


def test_threads_do_not_change_a_bit() -> None:
    problem = make_problem(MIXED)
    alone = KernelAttention(torch.float32, ThreadTeam(1))
    teams = [ThreadTeam(3), make_team(2), make_team(7)]
    for team in teams:
        attention = KernelAttention(torch.float32, team)
        for _ in range(5):
            assert torch.equal(problem.attend(attention), problem.attend(alone))


def test_layers_of_different_shapes_take_turns() -> None:
    """A kernel keeps what it knows of a step and of a layer: neither may be taken for another's."""
    attention = make_attention(torch.float32, num_threads=2)
    cases = [
        Case(spans=((2000, 1), (5, 2))),
        Case(spans=((2000, 1), (5, 2)), num_kv_heads=5, group=1, key_dim=16, value_dim=32, window=40),
        Case(spans=((1200, 2), (3000, 1), (40, 70), (8, 1)), num_kv_heads=1, group=8, value_dim=128),
    ]
    problems = [make_problem(case) for case in cases]
    for i in (0, 1, 2, 1, 0, 2):
        fresh = make_attention(torch.float32, num_threads=1)
        assert torch.equal(problems[i].attend(attention), problems[i].attend(fresh))
        np.testing.assert_allclose(problems[i].attend(attention), written_out(problems[i]), rtol=0, atol=4e-6)


def test_layers_of_one_step_may_differ() -> None:
    """The same spans, first for two kv heads and then for thirty."""
    few = make_problem(Case(spans=((2000, 1), (1500, 1))))
    many = make_problem(Case(spans=((2000, 1), (1500, 1)), num_kv_heads=30, group=1, key_dim=16, value_dim=16))
    assert torch.equal(few.spans.tables, many.spans.tables)
    attention = make_attention(torch.float32, num_threads=2)
    few.attend(attention)
    got = replace(many, spans=few.spans).attend(attention)
    np.testing.assert_allclose(got, written_out(many), rtol=0, atol=4e-6)


def test_very_long_context_is_split_in_few_pieces() -> None:
    problem = make_problem(Case(spans=((20_000, 1), (16_383, 1)), num_kv_heads=1, group=2, key_dim=16, value_dim=16))
    got = problem.attend(kernel(torch.float32))
    np.testing.assert_allclose(got, written_out(problem), rtol=0, atol=4e-6)


def test_large_scores_do_not_overflow() -> None:
    problem = make_problem(Case(spans=((300, 1), (10, 30)), sinks=True))
    problem.q.mul_(1000)
    got = problem.attend(kernel(torch.float32))
    np.testing.assert_allclose(got, written_out(problem), rtol=0, atol=1e-3)


def test_what_a_row_may_see_and_is_nan_shows() -> None:
    problem = make_problem(Case(spans=((40, 1), (40, 1))))
    problem.k_cache[problem.spans.tables[0, 1], 3] = torch.nan
    out = problem.attend(kernel(torch.float32))
    assert out[0].isnan().all()
    assert not out[1].isnan().any()


def test_other_dtypes_are_refused() -> None:
    problem = make_problem(Case(spans=((3, 1),), dtype=torch.float64))
    with pytest.raises(TypeError, match="float64"):
        problem.attend(kernel(torch.float32))


def test_the_library_threads_are_shared() -> None:
    assert isinstance(make_team(2), OpenMPTeam)
    assert isinstance(make_team(1), ThreadTeam)


def test_compiled_code_is_kept_and_found_again(tmp_path: Path) -> None:
    from tickertape.plugins.backends.transformers.cpu import cache as kept
    from tickertape.plugins.backends.transformers.cpu import lanes, linear_kernel, products

    argument = lanes.Pointer(lanes.ELEMENTS["float32"])
    modules = (linear_kernel, products, lanes)
    first = kept.compiled(linear_kernel.multiply_all, argument, modules, tmp_path)
    again = kept.compiled(linear_kernel.multiply_all, argument, modules, tmp_path)
    assert (first.cache_hits, again.cache_hits) == (0, 1)


def test_a_directory_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    from tickertape.plugins.backends.transformers.cpu.cache import find_directory

    ours, open_to_all = tmp_path / "ours", tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert find_directory(ours) == ours
    assert find_directory(open_to_all) not in (None, open_to_all)
