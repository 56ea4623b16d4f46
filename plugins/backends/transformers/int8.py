"""Linear layers with weights of int8: which layers of a model have them, from the files or made here, and how they are
put in place."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn

from tickertape.plugins import SCALE_SUFFIX, StartupError, WeightSet, becomes_int8, quantize_rows

__all__ = ["Int8Layers", "Int8Weight", "expanded", "find_layers", "int8_weight", "mapped", "put_in_place", "scaled"]

_PIECE: Final = 1 << 22  # numbers quantized at once


class Int8Weight(NamedTuple):
    """Integers [out, in] and float32 scales [out]."""

    integers: torch.Tensor
    scales: torch.Tensor


class Int8Layers(NamedTuple):
    """Names of weights in the files -> in the model. Those in `stored` are used where they are mapped; of those in
    `made` the files hold the wide ones, and each process makes its own."""

    stored: Mapping[str, str]
    made: Mapping[str, str]

    @property
    def is_mapped(self) -> Mapping[str, bool]:
        """By the model's names."""
        return {**dict.fromkeys(self.made.values(), False), **dict.fromkeys(self.stored.values(), True)}


def find_layers(
    skeleton: nn.Module, stored: Mapping[str, Any], own: Mapping[str, str], *, quantize: bool
) -> Int8Layers:
    """Of a model like `skeleton` that is loaded from `stored` (name -> dtype and shape), whose names it has as `own`.
    With `quantize` the wide ones are made, too. Only plain layers count, with a weight of their own: what a subclass
    computes is its own affair."""
    num_uses = Counter(id(parameter) for _, parameter in skeleton.named_parameters(remove_duplicate=False))
    plain = {
        f"{path}.weight": module
        for path, module in skeleton.named_modules()
        if type(module) is nn.Linear and num_uses[id(module.weight)] == 1
    }
    in_files: dict[str, str] = {}
    made: dict[str, str] = {}
    for name, other in own.items():
        if (linear := plain.get(other)) is None or tuple(linear.weight.shape) != stored[name].shape:
            continue
        if stored[name].dtype == "I8":
            in_files[name] = other
        elif quantize and becomes_int8(name, *stored[name]):
            made[name] = other
    return Int8Layers(in_files, made)


def int8_weight(weights: WeightSet, name: str) -> Int8Weight:
    """A stored weight where it is mapped. Raises StartupError (BadTensor) when its scales are not what they should."""
    place = name + SCALE_SUFFIX
    shape = weights.shape(name)
    if place not in weights.names() or (weights.dtype(place), weights.shape(place)) != ("F32", shape[:1]):
        raise StartupError(f"{name} is of 8 bits, and {place} does not hold its scales", code="BadTensor")
    return Int8Weight(mapped(weights, name), mapped(weights, place))


def mapped(weights: WeightSet, name: str) -> torch.Tensor:
    """A tensor over the mapping. torch knows no read-only tensors: nobody may write to it, and nobody does, since the
    library initialises only what the files do not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(weights.open(name))


def expanded(weight: Int8Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight it stands for, as a copy."""
    return (weight.integers.float() * weight.scales[:, None]).to(dtype)


def scaled(name: str, wide: torch.Tensor) -> Int8Weight:
    """A wide weight, quantized here. Raises StartupError (OutOfRange)."""
    num_rows = max(1, _PIECE // wide.shape[1])
    try:
        pieces = [quantize_rows(piece.float().numpy()) for piece in wide.split(num_rows)]
    except ValueError as error:
        raise StartupError(f"{name!r} cannot be quantized: {error}", code="OutOfRange") from error
    integers, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Int8Weight(torch.from_numpy(integers), torch.from_numpy(scales))


def put_in_place(model: nn.Module, found: Mapping[str, Int8Weight]) -> None:
    """Gives the layers of a loaded model their weights (by the model's names of these). They cannot compute until
    `replace_linears` has replaced them."""
    for name, weight in found.items():
        linear = model.get_submodule(name.removesuffix(".weight"))
        linear.weight = nn.Parameter(weight.integers, requires_grad=False)
        linear.register_buffer("weight_scale", weight.scales, persistent=False)
