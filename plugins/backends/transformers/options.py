"""Where and in which type a model is computed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tickertape.plugins import Array, BackendOptions, ModelSpec, StartupError, is_int8
from tickertape.plugins.backends.transformers.cpu.threads import available_cores
from tickertape.plugins.backends.transformers.suitability import refuses

__all__ = ["Placement", "placement"]

_TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Placement(NamedTuple):
    """`kernels`: whether the CPU's compiled kernels are used, rather than torch alone. `quantize`: whether linear
    layers are to have weights of int8 where the files have wide ones."""

    dtype: torch.dtype
    device: torch.device
    num_threads: int
    kernels: bool
    quantize: bool = False

    def for_sampling(self, logits: torch.Tensor) -> Array:
        """The logits as the sampler's namespace has them: numpy on the CPU, which knows no bfloat16."""
        if self.device.type != "cpu":
            return logits
        return (logits if logits.dtype.itemsize > 2 else logits.float()).numpy()


def placement(spec: ModelSpec, options: BackendOptions) -> Placement:
    """What `auto` means: the type of the file, except that a CPU without instructions for a half type computes in
    float32, and that weights of int8 are not computed in float64. Raises StartupError (BadOption)."""
    if options.quantization not in ("none", "int8"):
        raise StartupError(f"the transformers backend does not quantize to {options.quantization}", code="BadOption")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartupError(f"device {options.device}: this machine or this torch has no CUDA", code="BadOption")
    dtype = _TYPES[spec.dtype if options.dtype == "auto" else options.dtype]
    if options.dtype == "auto" and device.type == "cpu" and not _computed_by_cpu(dtype):
        dtype = torch.float32
    quantize = options.quantization == "int8"
    int8 = quantize or is_int8(spec.config)
    if (reason := refuses(spec, options)) is not None:
        raise StartupError(reason, code="BadOption")
    if options.dtype == "auto" and int8 and dtype == torch.float64:
        dtype = torch.float32
    kernels = device.type == "cpu" and bool(options.extra.get("kernels", True))
    return Placement(dtype, device, options.num_threads or available_cores(), kernels, quantize)


def _computed_by_cpu(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True
