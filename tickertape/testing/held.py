"""How many bytes of arrays an object holds: numpy's and torch's, on any device, shared ones counted once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import CallableProxyType, ProxyType

import numpy as np

from tickertape.plugins import WeightSet

__all__ = ["held_bytes"]

_OPAQUE = (
    ModuleType, type, CodeType, FrameType, BuiltinFunctionType, ProxyType, CallableProxyType, str, bytes, int, float,
)  # fmt: skip


def held_bytes(holder: object, weights: WeightSet | None = None) -> int:
    """The memory of all arrays that can be reached from `holder`, without that of `weights`, which is shared."""
    spans = [] if weights is None else [_span(weights.open(name)) for name in weights.names()]
    found: dict[tuple[str, int], int] = {}
    for thing in _reached(holder):
        if isinstance(thing, np.ndarray):
            owner = _owner(thing)
            start, num_bytes = _span(owner)
            place = "host"
        elif (storage := _storage(thing)) is not None:
            start, num_bytes, place = storage
        else:
            continue
        if place != "host" or not any(first <= start < first + count for first, count in spans):
            found[place, start] = max(found.get((place, start), 0), num_bytes)
    return sum(found.values())


def _reached(holder: object) -> Iterable[object]:
    """Everything that can be reached, arrays and tensors not looked into. Of a function only what it closes over."""
    seen: set[int] = {id(holder)}
    ahead: list[object] = [holder]
    while ahead:
        thing = ahead.pop()
        yield thing
        if isinstance(thing, np.ndarray) or _storage(thing) is not None:
            continue
        for part in _parts(thing):
            # By type: isinstance would ask a proxy what it stands for, which may be gone.
            if id(part) not in seen and not issubclass(type(part), _OPAQUE):
                seen.add(id(part))
                ahead.append(part)


def _parts(thing: object) -> Iterable[object]:
    if isinstance(thing, FunctionType):
        return [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
    if isinstance(thing, MethodType):
        return [thing.__self__]
    return gc.get_referents(thing)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _owner(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array whose memory a view looks at."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return array.__array_interface__["data"][0], array.nbytes


def _storage(thing: object) -> tuple[int, int, str] | None:
    """Address, bytes and device of a torch tensor's memory. torch is not imported for it: without it there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(thing, torch.Tensor) or thing.layout != torch.strided:
        return None
    try:
        storage = thing.untyped_storage()
        device = thing.device
        return storage.data_ptr(), storage.nbytes(), "host" if device.type == "cpu" else str(device)
    except RuntimeError:  # a tensor without memory of its own
        return None
