"""Linear layers of a model on a CPU, computed from the weights where they lie.

Layers that are handed the same input (queries, keys and values; gate and up) are computed together, at the first call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tickertape.plugins.backends.transformers.cpu.team import Team, make_team

__all__ = ["LinearKernel", "SharedInput", "replace_linears"]

_SAME_INPUT: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_VECTOR: Final = 16
_CHECKED_ROWS: Final = 256

_FEW_ROWS: Final = 8
"""Beyond, a processor that multiplies bfloat16 (or float16) itself is faster than widening to float32."""


class LinearKernel:
    """The compiled kernel for weights, biases and results of one dtype, or (`int8`) for weights of int8 with a float32
    for each row that its sums are multiplied by. One call at a time, from the thread that runs the model."""

    def __init__(self, dtype: torch.dtype, team: Team, cache_dir: Path | None = None, *, int8: bool = False) -> None:
        # Importing numba takes a second: only who uses it pays.
        from tickertape.plugins.backends.transformers.cpu import arithmetic, cache, lanes, linear_kernel, products

        element = lanes.ELEMENTS[str(dtype).removeprefix("torch.")]
        modules = (linear_kernel, products, arithmetic, lanes)
        directory = cache.find_directory(cache_dir)
        self.dtype = dtype
        body = linear_kernel.multiply_all_int8 if int8 else linear_kernel.multiply_all
        self._compiled = cache.compiled(body, lanes.Pointer(element), modules, directory)
        self._team = team
        self._part = linear_kernel.Part
        self._scratch = torch.empty(team.num_threads * linear_kernel.SCRATCH_BYTES, dtype=torch.uint8)
        self._job = linear_kernel.LinearJob(scratch=self._scratch.data_ptr())
        self._job_address = ctypes.addressof(self._job)
        self._native = not int8 and _multiplies_natively(dtype)

    def multiply(
        self,
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        scales: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """x [..., in_features] through each weight [out_features, in_features], contiguous, and its bias; weights of
        int8 have scales [out_features]."""
        num_rows = x.numel() // x.shape[-1]
        if self._native and num_rows > _FEW_ROWS:
            return [functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        wide = x.to(torch.float32).contiguous()
        outs = [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]
        parts = (self._part * len(weights))()
        for part, weight, bias, out in zip(parts, weights, biases, outs, strict=True):
            part.weight, part.out, part.out_features = weight.data_ptr(), out.data_ptr(), weight.shape[0]
            part.bias = 0 if bias is None else bias.data_ptr()
        for part, scale in zip(parts, scales, strict=False):
            part.scales = scale.data_ptr()
        job = self._job
        job.ticket = job.entrants = 0
        job.x, job.num_rows, job.in_features = wide.data_ptr(), num_rows, x.shape[-1]
        job.num_parts, job.parts = len(weights), ctypes.addressof(parts)
        self._team.run(self._compiled.address, self._job_address)
        return outs


class SharedInput:
    """Linear layers that are handed the same tensor, one after the other. The first call computes them all; the others
    pick up theirs. A tensor that is not the very same, or was changed in between, is computed anew."""

    def __init__(self, kernel: LinearKernel, linears: Sequence[nn.Linear]) -> None:
        self._kernel = kernel
        self._weights = [linear.weight for linear in linears]
        self._biases = [linear.bias for linear in linears]
        self._scales = [linear.weight_scale for linear in linears if _is_int8(linear)]
        self._x: torch.Tensor | None = None
        self._version = 0
        self._outs: list[torch.Tensor | None] = []

    def pick(self, x: torch.Tensor, index: int) -> torch.Tensor:
        # Tensors made in inference mode keep no count of their changes.
        version = 0 if x.is_inference() else x._version
        out = self._outs[index] if x is self._x and version == self._version else None
        if out is None:
            self._x, self._version = x, version
            self._outs = list(self._kernel.multiply(x, self._weights, self._biases, self._scales))
            out = self._outs[index]
            assert out is not None
        self._outs[index] = None
        if not any(other is not None for other in self._outs):
            self._x = None  # nothing is held once all have theirs
        return out


class KernelLinear(nn.Module):  # type: ignore[misc]  # torch is not looked into
    """Stands for an nn.Linear. The weight stays the same Parameter, so what is tied remains tied."""

    def __init__(self, linear: nn.Linear, shared: SharedInput, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        if _is_int8(linear):
            self.register_buffer("weight_scale", linear.weight_scale, persistent=False)
        self._shared, self._index = shared, index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.pick(x, self._index)


def replace_linears(
    model: nn.Module, *, dtype: torch.dtype, fuse: bool, num_threads: int, cache_dir: Path | None = None
) -> int:
    """Replaces the nn.Linear layers of a loaded model whose weights are contiguous, of `dtype` (or of int8, with a
    buffer `weight_scale`) and a multiple of 16 wide, and returns how many. float64 models, and any where numba is
    absent, stay as they are. Takes no memory beyond some KiB a thread. Compiles (seconds) unless kept on disk; each set
    that is computed together is compared with its members alone, and refused with ValueError if it differs."""
    if dtype == torch.float64 or find_spec("numba") is None:
        return 0
    kernels: dict[bool, LinearKernel] = {}
    count = 0
    for parent in list(model.modules()):
        linears = {name: child for name, child in parent.named_children() if _is_served(child, dtype)}
        for names in _sets(linears, fuse):
            members = [linears[name] for name in names]
            int8 = _is_int8(members[0])
            if int8 not in kernels:
                kernels[int8] = LinearKernel(dtype, make_team(num_threads), cache_dir, int8=int8)
            shared = SharedInput(kernels[int8], members)
            if len(members) > 1:
                _check(shared, members, dtype)
            for index, name in enumerate(names):
                setattr(parent, name, KernelLinear(members[index], shared, index))
                count += 1
    return count


def _is_served(module: nn.Module, dtype: torch.dtype) -> bool:
    if type(module) is not nn.Linear:  # a subclass computes something else
        return False
    weight, bias = module.weight, module.bias
    hooked = module._forward_hooks or module._forward_pre_hooks
    known = weight.dtype == dtype or _is_int8(module)
    plain = known and weight.is_contiguous() and weight.device.type == "cpu" and not hooked
    return plain and module.in_features % _VECTOR == 0 and (bias is None or bias.dtype == dtype)


def _is_int8(linear: nn.Module) -> bool:
    return bool(linear.weight.dtype == torch.int8)


def _sets(linears: dict[str, nn.Linear], fuse: bool) -> list[tuple[str, ...]]:
    """The names, those computed together in one tuple."""
    together = [
        names
        for names in _SAME_INPUT
        if fuse and all(name in linears for name in names) and len({_kind(linears[name]) for name in names}) == 1
    ]
    taken = {name for names in together for name in names}
    return [*together, *((name,) for name in linears if name not in taken)]


def _kind(linear: nn.Linear) -> tuple[int, torch.dtype]:
    return linear.in_features, linear.weight.dtype


def _check(shared: SharedInput, members: Sequence[nn.Linear], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, members[0].in_features, generator=generator).to(dtype)
    with torch.inference_mode():
        for index, member in enumerate(members):
            wanted, got = _alone(member, x).double(), shared.pick(x, index).double()
            tolerance = 64 * torch.finfo(dtype).eps * wanted.abs().max()
            if not torch.allclose(got, wanted, rtol=0, atol=tolerance.item(), equal_nan=True):
                raise ValueError("linear layers computed together differ from each alone")


def _alone(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What the layer computes, by other means than the kernel. Of int8 a few rows are wide at once."""
    if not _is_int8(linear):
        out: torch.Tensor = linear(x)
        return out
    sums = torch.cat([x.float() @ rows.float().T for rows in linear.weight.split(_CHECKED_ROWS)], -1)
    return sums * linear.weight_scale + (0 if linear.bias is None else linear.bias)


def _multiplies_natively(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return False
