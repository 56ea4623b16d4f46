"""Linear layers over the weights where they lie."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tickertape.plugins.backends.transformers.cpu.linears import (
    KernelLinear,
    LinearKernel,
    SharedInput,
    replace_linears,
)
from tickertape.plugins.backends.transformers.cpu.team import make_team
from tickertape.plugins.backends.transformers.cpu.threads import available_cores, use_threads

pytest.importorskip("numba")

EPSILON = {torch.float32: 2e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@cache
def kernel(dtype: torch.dtype, *, int8: bool = False) -> LinearKernel:
    return LinearKernel(dtype, make_team(2), int8=int8)


def int8_weight(rows: int, depth: int, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value of the type, and scales that differ widely."""
    weight = torch.randint(-128, 128, (rows, depth), dtype=torch.int8, generator=generator)
    return weight, torch.logspace(-4, -1, rows)[torch.randperm(rows, generator=generator)]


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q_proj = nn.Linear(64, 96, bias=bias)
        self.k_proj = nn.Linear(64, 32, bias=bias)
        self.v_proj = nn.Linear(64, 40, bias=bias)
        self.o_proj = nn.Linear(96, 64, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        both = torch.cat([k, v, torch.zeros_like(k)[..., :24]], -1)
        mixed: torch.Tensor = self.o_proj(q * both.sigmoid())
        return mixed


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, bias: bool = False, odd: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.attention = Attention(bias)
        self.gate_proj = nn.Linear(64, 160, bias=bias)
        self.up_proj = nn.Linear(64, 160, bias=bias)
        self.down_proj = nn.Linear(160, 64, bias=bias)
        self.lm_head = nn.Linear(64, 50, bias=False)
        self.lm_head.weight = self.embed.weight
        if odd:
            self.odd = nn.Linear(50, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.attention(x)
        x = x + self.down_proj(torch.sigmoid(self.gate_proj(x)) * self.up_proj(x))
        logits: torch.Tensor = self.lm_head(x)
        return logits


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([*EPSILON]),
    num_rows=st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 130])),
    depth=st.sampled_from([16, 64, 576, 1040, 2064]),
    widths=st.lists(st.sampled_from([1, 3, 4, 31, 32, 33, 100]), min_size=1, max_size=3),
    bias=st.booleans(),
)
def test_products_equal_those_in_float64(
    dtype: torch.dtype, num_rows: int, depth: int, widths: list[int], bias: bool
) -> None:
    generator = torch.Generator().manual_seed(num_rows + depth)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    x, weights = numbers(1, num_rows, depth), [numbers(width, depth) for width in widths]
    biases = [numbers(width) if bias else None for width in widths]
    outs = kernel(dtype).multiply(x, weights, biases)
    for out, weight, b in zip(outs, weights, biases, strict=True):
        wanted = x.double() @ weight.double().T + (0 if b is None else b.double())
        assert out.shape == wanted.shape
        assert (out.double() - wanted).abs().max() <= EPSILON[dtype] * (depth + wanted.abs().max())


@pytest.mark.parametrize("depth", [64, 1536])
def test_a_row_gives_the_same_bits_in_any_batch(depth: int) -> None:
    x, weight, bias = torch.randn(70, depth), torch.randn(45, depth), torch.randn(45)
    (together,) = kernel(torch.float32).multiply(x, [weight], [bias])
    for first, last in ((0, 1), (3, 5), (60, 70), (69, 70)):
        (alone,) = kernel(torch.float32).multiply(x[first:last], [weight], [bias])
        assert torch.equal(alone, together[first:last])


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([*EPSILON]),
    num_rows=st.one_of(st.integers(1, 10), st.sampled_from([63, 64, 65, 72, 73, 130])),
    depth=st.sampled_from([16, 64, 576, 1040, 2064]),
    widths=st.lists(st.sampled_from([1, 3, 4, 31, 32, 33, 100]), min_size=1, max_size=3),
    bias=st.booleans(),
)
def test_products_with_int8_weights_equal_those_of_the_weights_they_stand_for(
    dtype: torch.dtype, num_rows: int, depth: int, widths: list[int], bias: bool
) -> None:
    generator = torch.Generator().manual_seed(num_rows + depth)
    x = torch.randn(num_rows, depth, generator=generator).to(dtype)
    stored = [int8_weight(width, depth, generator) for width in widths]
    biases = [torch.randn(width, generator=generator).to(dtype) if bias else None for width in widths]
    weights, scales = [weight for weight, _ in stored], [scale for _, scale in stored]
    outs = kernel(dtype, int8=True).multiply(x, weights, biases, scales)
    for out, (weight, scale), b in zip(outs, stored, biases, strict=True):
        wide = weight.double() * scale.double()[:, None]
        wanted = x.double() @ wide.T + (0 if b is None else b.double())
        assert (out.dtype, out.shape) == (dtype, wanted.shape)
        # What float32 sums lose grows with the sum of magnitudes; the rest is the rounding of the result.
        lost = 2e-7 * (x.double().abs() @ wide.abs().T) + EPSILON[dtype] * (wanted.abs() + 1)
        assert ((out.double() - wanted).abs() <= lost).all()


@pytest.mark.parametrize("depth", [64, 1536])
def test_a_row_gives_the_same_bits_in_any_batch_with_int8_weights(depth: int) -> None:
    """Around the numbers of rows from which on weights are widened first, and blocks of rows end."""
    x, (weight, scale), bias = torch.randn(75, depth), int8_weight(45, depth), torch.randn(45)

    def multiplied(rows: torch.Tensor) -> torch.Tensor:
        (out,) = kernel(torch.float32, int8=True).multiply(rows, [weight], [bias], [scale])
        return out

    together = multiplied(x)
    for first, last in ((0, 1), (3, 5), (1, 9), (1, 10), (0, 64), (0, 65), (0, 73), (60, 75), (74, 75)):
        assert torch.equal(multiplied(x[first:last]), together[first:last])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_computes_the_same_fused_or_not(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    model = Model(bias).to(dtype).requires_grad_(False)
    ids = torch.randint(50, (1, 6))
    with torch.inference_mode():
        before = model(ids)
        assert replace_linears(model, dtype=dtype, fuse=False, num_threads=2) == 8
        apart = model(ids)
    twin = Model(bias).to(dtype).requires_grad_(False)
    twin.load_state_dict(model.state_dict())
    assert replace_linears(twin, dtype=dtype, fuse=True, num_threads=2) == 8
    with torch.inference_mode():
        together = twin(ids)
    assert torch.equal(apart, together)
    torch.testing.assert_close(apart, before, rtol=0, atol=4 * torch.finfo(dtype).eps * float(before.abs().max()))


def test_weights_are_not_copied_and_tied_ones_stay_tied() -> None:
    model = Model()
    places = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    replace_linears(model, dtype=torch.float32, fuse=True, num_threads=1)
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == places
    assert isinstance(model.lm_head, KernelLinear)
    assert model.lm_head.weight is model.embed.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_int8_compute_as_the_wide_ones_they_stand_for(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    wide, narrow = Model(bias=True).requires_grad_(False), Model(bias=True).requires_grad_(False)
    narrow.load_state_dict(wide.state_dict())
    for (_, there), (path, here) in zip(wide.named_modules(), narrow.named_modules(), strict=True):
        if isinstance(here, nn.Linear) and path != "lm_head":
            integers, scales = int8_weight(*here.weight.shape)
            here.weight = nn.Parameter(integers, requires_grad=False)
            here.register_buffer("weight_scale", scales / 16)
            there.weight.copy_(integers * scales[:, None] / 16)
    narrow.to(dtype)
    for module in narrow.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale = module.weight_scale.float()
    assert replace_linears(narrow, dtype=dtype, fuse=True, num_threads=2) == 8
    ids = torch.randint(50, (1, 6))
    with torch.inference_mode():
        wanted, got = wide(ids), narrow(ids)
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.float(), wanted, rtol=0, atol=16 * torch.finfo(dtype).eps * float(wanted.abs().max())
    )


def test_what_the_kernel_cannot_do_stays() -> None:
    model = Model(odd=True)
    assert replace_linears(model.double(), dtype=torch.float64, fuse=True, num_threads=1) == 0
    model.float()
    model.down_proj.register_forward_hook(lambda *_: None)
    assert replace_linears(model, dtype=torch.float32, fuse=True, num_threads=1) == 7
    assert type(model.odd) is nn.Linear
    assert type(model.down_proj) is nn.Linear


@pytest.mark.parametrize("inference", [False, True])
def test_an_input_that_only_looks_the_same_is_computed_anew(inference: bool) -> None:
    first, second = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=False)
    shared = SharedInput(kernel(torch.float32), [first, second])
    with torch.inference_mode(inference), torch.no_grad():
        x, other = torch.randn(2, 32), torch.randn(2, 32)
        torch.testing.assert_close(shared.pick(x, 0), first(x))
        torch.testing.assert_close(shared.pick(other, 1), second(other))
        torch.testing.assert_close(shared.pick(x, 0), first(x))
        if not inference:
            x.mul_(2)
        torch.testing.assert_close(shared.pick(x, 1), second(x))
        # All have theirs: the same tensor again, and changed meanwhile, is a new question.
        x.mul_(3)
        torch.testing.assert_close(shared.pick(x, 1), second(x))


def test_layers_that_differ_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LinearKernel.multiply

    def wrong(self: LinearKernel, x: torch.Tensor, weights: list[torch.Tensor], *_: object) -> list[torch.Tensor]:
        return right(self, x, weights[::-1], [None] * len(weights))[::-1][:1] * len(weights)

    monkeypatch.setattr(LinearKernel, "multiply", wrong)
    with pytest.raises(ValueError, match="differ"):
        replace_linears(Model(), dtype=torch.float32, fuse=True, num_threads=1)


def test_threads_follow_the_quota(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("max 100000\n")
    everything = available_cores(quota)
    quota.write_text("50000 100000\n")
    assert available_cores(quota) == 1
    quota.write_text("100000000 100000\n")
    assert available_cores(quota) == everything == available_cores(tmp_path / "absent")
    before = torch.get_num_threads()
    try:
        assert use_threads(1) == torch.get_num_threads() == 1
    finally:
        use_threads(before)
