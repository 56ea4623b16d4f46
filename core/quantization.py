"""Weights of 8 bits: which are stored so, how, and how a model directory says that they are.

A weight [out, in] of a linear layer becomes integers in [-127, 127] of the same shape and one float32 per row: what
it stands for is `integers * scales[:, None]`. The scales of NAME are the tensor NAME_scale. config.json names the
method under `quantization_config`, as is the custom, so that whoever does not know it does not compute with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["INT8_CONFIG", "SCALE_SUFFIX", "becomes_int8", "is_int8", "quantize_rows"]

INT8_CONFIG: Final[Mapping[str, Any]] = MappingProxyType({"quant_method": "tickertape-int8", "version": 1})
"""`quantization_config` in config.json."""

SCALE_SUFFIX: Final = "_scale"

_FLOATS: Final = frozenset({"F32", "F16", "BF16"})
_MULTIPLE: Final = 16
_LARGEST: Final = 127
_KEPT: Final = re.compile(
    r"embed|emb\b|lm_head|norm|conv|(^|\.)(wte|wpe|output|score|gate|router|weights_proj|experts|c_attn|c_proj|c_fc)\."
)
"""Embeddings, and the head that may be one; what decides by small differences; experts, which libraries merge into
copies of their own; and the layers of GPT-2, whose weights are [in, out]."""


def becomes_int8(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this name and type (as safetensors spells it) is the weight of a linear layer to quantize."""
    is_weight = len(shape) == 2 and name.endswith(".weight") and not _KEPT.search(name)
    return is_weight and dtype in _FLOATS and shape[1] % _MULTIPLE == 0 and min(shape) > 0


def is_int8(config: Mapping[str, Any]) -> bool:
    """Whether the model of this config.json has weights as described here."""
    return config.get("quantization_config") == INT8_CONFIG


def quantize_rows(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rows [n, in] as integers and their scales [n]: the largest magnitude of a row becomes 127, the rest is rounded to
    the nearest, ties to even. Raises ValueError when a value is not finite."""
    if not values.size:
        raise ValueError("there is nothing to quantize")
    scales = np.abs(values).max(axis=1) / np.float32(_LARGEST)
    if not np.isfinite(scales).all():
        raise ValueError("a value is not finite")
    # A row of zeros, or of numbers so small that the scale is 0, becomes zeros.
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    rounded = np.clip(np.rint(values / divisors[:, None]), -_LARGEST, _LARGEST)
    return rounded.astype(np.int8), scales
