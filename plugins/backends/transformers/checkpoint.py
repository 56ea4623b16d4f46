"""From mapped tensors to a model: in place where the file has the type we compute in, through the library's own
renaming and merging, and with the sum known before anything is taken."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from tickertape.plugins import Progress, StartupError, WeightSet
from tickertape.plugins.backends.transformers.library import one_line, quietly

__all__ = ["Footprint", "Stored", "footprint", "load_model", "read_headers"]

_TYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Stored(NamedTuple):
    """A tensor as its file holds it."""

    dtype: str
    shape: tuple[int, ...]


class Footprint(NamedTuple):
    """`mapped_bytes` are used where they lie in the files; `private_bytes` are copies: tensors of another type, merged
    ones, and buffers that no file holds."""

    mapped_bytes: int
    private_bytes: int


def read_headers(directory: Path) -> dict[str, Stored]:
    """What the safetensors files of a model directory hold, by name. Reads no tensor."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                view = file.get_slice(name)
                found[name] = Stored(view.get_dtype(), tuple(view.get_shape()))
    return found


def footprint(skeleton: Any, stored: Mapping[str, Stored]) -> Footprint:
    """What loading `stored` into a model like `skeleton` (on the meta device, in the types it will have) will take.
    Tied tensors are counted once."""
    mapped = _used_in_place(skeleton, stored)
    tensors: dict[int, torch.Tensor] = {}
    in_place: set[int] = set()
    for name, tensor in _tensors(skeleton):
        tensors[id(tensor)] = tensor
        if name in mapped:
            in_place.add(id(tensor))
    mapped_bytes = sum(tensor.nbytes for key, tensor in tensors.items() if key in in_place)
    return Footprint(mapped_bytes, sum(tensor.nbytes for tensor in tensors.values()) - mapped_bytes)


def load_model(
    model_class: Any, config: Any, weights: WeightSet, dtype: torch.dtype, attention: str
) -> Generator[Progress, None, Any]:
    """Yields progress in bytes; returns the model, on the CPU and ready to compute.

    Tensors of type `dtype` stay where they are mapped. Raises StartupError: MissingTensor, UnexpectedTensor or
    BadTensor, naming the first few that are to blame.
    """
    names = list(weights.names())  # as they lie in their files, and come when they are still being fetched
    if strange := [name for name in names if weights.dtype(name) not in _TYPES]:
        raise StartupError(f"weights of a type that is not computed with: {_some(strange)}", code="BadTensor")
    tensors, done, total = {}, 0, sum(_size(weights, name) for name in names)
    for name in names:
        tensors[name] = _view(weights, name)
        done += _size(weights, name)
        yield Progress("load", done, total)
    with quietly():
        try:
            model, report = model_class.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation=attention,
                # The library's grouped product knows no float64.
                experts_implementation="eager" if dtype == torch.float64 else None,
                ignore_mismatched_sizes=True,  # they are in the report, and refused below
                output_loading_info=True,
            )
        except (RuntimeError, ValueError) as error:
            raise StartupError(f"the weights do not fit the model: {one_line(error)}", code="BadTensor") from error
    _verify(report)
    return model.eval().requires_grad_(False)


def _verify(report: Mapping[str, Any]) -> None:
    """The library has left out already what it knows to be harmless."""
    if missing := report["missing_keys"]:
        raise StartupError(f"the model's files lack {_some(missing)}", code="MissingTensor")
    if mismatched := report["mismatched_keys"]:
        shapes = [f"{name} {tuple(found)} (not {tuple(wanted)})" for name, found, wanted in mismatched]
        raise StartupError(f"tensors of another shape than config.json says: {_some(shapes)}", code="BadTensor")
    if unexpected := report["unexpected_keys"]:
        raise StartupError(f"the model has no place for {_some(unexpected)}", code="UnexpectedTensor")


def _used_in_place(skeleton: Any, stored: Mapping[str, Stored]) -> set[str]:
    """The model's own names of the tensors that need no copy: of the right type, renamed at most."""
    transforms = get_model_conversion_mapping(skeleton)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    state = skeleton.state_dict()
    found = set()
    for name, tensor in stored.items():
        own, converted = rename_source_key(name, renamings, converters, skeleton.base_model_prefix, state)
        own = own if own in state else name
        if own in state and converted is None and _TYPES.get(tensor.dtype) == state[own].dtype:
            found.add(own)
    return found


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _view(weights: WeightSet, name: str) -> torch.Tensor:
    """A tensor over the mapping. torch knows no read-only tensors: nobody may write to it, and nobody does, since the
    library initialises only what the files do not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(weights.open(name))
    return tensor.view(torch.bfloat16) if weights.dtype(name) == "BF16" else tensor


def _size(weights: WeightSet, name: str) -> int:
    return int(torch.Size(weights.shape(name)).numel() * _TYPES[weights.dtype(name)].itemsize)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
