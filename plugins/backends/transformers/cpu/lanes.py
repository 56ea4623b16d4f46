"""Vectors of the processor as values inside numba functions: loads that widen, stores that narrow, a few operators.

The code generator's own vectoriser decides by trip counts and aliasing how a sum is associated. With `Lanes` the
association is the one written down, so equal inputs give equal bits wherever a row stands in a batch. Lanes hold the
type that is computed in: float64 for float64, float32 for everything narrower.

Numba knows neither bfloat16 nor, on a CPU, float16. What memory holds is told by the type of the pointer to it:
`uint16` stands for bfloat16 and `int16` for float16 (ELEMENTS). `int8` is what it says, and widens to float32, exactly.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, overload, register_model

__all__ = [
    "ELEMENTS",
    "Lanes",
    "Pointer",
    "address_of",
    "at",
    "fetch_add",
    "float32_at",
    "float64_at",
    "int8_at",
    "int32_at",
    "int64_at",
    "lanes_of",
    "load",
    "load_part",
    "load_vector",
    "pointer_like",
    "prefetch",
    "prefetch_line",
    "scratch_like",
    "store",
    "transpose",
    "vector_of",
    "width_of",
]

ELEMENTS: Final = {"float64": types.float64, "float32": types.float32, "bfloat16": types.uint16, "float16": types.int16}

_VECTOR_BYTES: Final = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
I32: Final = ir.IntType(32)
STORED: Final = {
    types.float64: ir.DoubleType(),
    types.float32: ir.FloatType(),
    types.uint16: ir.IntType(16),
    types.int16: ir.HalfType(),
    types.int8: ir.IntType(8),
    types.int32: ir.IntType(32),
    types.int64: ir.IntType(64),
}


class Lanes(types.Type):  # type: ignore[misc]
    """The numba type of a vector of `width` numbers of type `element`."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        self.width = _VECTOR_BYTES * 8 // element.bitwidth
        super().__init__(name=f"Lanes({self.width} x {element})")


class Pointer(types.Type):  # type: ignore[misc]
    """The numba type of the address of numbers of type `dtype`. `pointer[i]` reads a number, widened to the type that
    is computed in (integers to int64); `pointer[i] = number` rounds to the nearest, even on ties."""

    def __init__(self, dtype: types.Number) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pointer({dtype})")

    @property
    def stored(self) -> ir.Type:
        """An element as the code generator knows it."""
        return STORED[self.dtype]

    @property
    def computed(self) -> types.Number:
        if self.dtype in (types.int32, types.int64):
            return types.int64
        return types.float64 if self.dtype == types.float64 else types.float32


@register_model(Pointer)
class _PointerModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, pointer: Pointer) -> None:
        super().__init__(manager, pointer, STORED[pointer.dtype].as_pointer())


@register_model(Lanes)
class _LanesModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, vector_of(lanes))


def vector_of(lanes: Lanes, element: ir.Type | None = None) -> ir.VectorType:
    return ir.VectorType(element or STORED[lanes.element], lanes.width)


def lanes_of(pointer: Pointer) -> Lanes:
    """What a load through this pointer makes."""
    return Lanes(pointer.computed)


# Addresses


@intrinsic
def pointer_like(context, like, address):  # type: ignore[no-untyped-def]
    """The address as a pointer to what `like` points to."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[1], STORED[like.dtype].as_pointer())

    return like(like, types.int64), build


@intrinsic
def scratch_like(context, like, address):  # type: ignore[no-untyped-def]
    """The address as a pointer to numbers of the type that `like`'s are computed in."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[1], STORED[lanes_of(like).element].as_pointer())

    return Pointer(lanes_of(like).element)(like, types.int64), build


@intrinsic
def address_of(context, pointer):  # type: ignore[no-untyped-def]
    return types.int64(pointer), lambda context, builder, signature, args: builder.ptrtoint(args[0], ir.IntType(64))


def _pointer_to(element: types.Type) -> Any:
    @intrinsic
    def pointer(context, address):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], STORED[element].as_pointer())

        return Pointer(element)(types.int64), build

    return pointer


int8_at = _pointer_to(types.int8)
int32_at = _pointer_to(types.int32)
int64_at = _pointer_to(types.int64)
float32_at = _pointer_to(types.float32)
float64_at = _pointer_to(types.float64)


@intrinsic
def at(context, pointer, index):  # type: ignore[no-untyped-def]
    """The pointer, `index` elements further."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.gep(args[0], [args[1]], source_etype=STORED[pointer.dtype])

    return pointer(pointer, types.int64), build


@intrinsic
def fetch_add(context, pointer, amount):  # type: ignore[no-untyped-def]
    """Adds to an int64 that threads share and returns what it was; orders all other memory around it."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", args[0], args[1], "acq_rel")

    return types.int64(pointer, types.int64), build


# Memory


def _widen(builder: ir.IRBuilder, stored: ir.Value, element: types.Type, wide: ir.Type, bits: ir.Type) -> ir.Value:
    if element == types.int16:
        return builder.fpext(stored, wide)
    if element == types.int8:
        return builder.sitofp(stored, wide)
    if element == types.uint16:
        shift = constant(bits, 16)
        return builder.bitcast(builder.shl(builder.zext(stored, bits), shift), wide)
    return stored


def constant(kind: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


@intrinsic
def width_of(context, pointer):  # type: ignore[no-untyped-def]
    """How many numbers a load through this pointer takes."""
    width = lanes_of(pointer).width
    return types.int64(pointer), lambda context, builder, signature, args: ir.Constant(ir.IntType(64), width)


def load_vector(builder: ir.IRBuilder, pointer: Pointer, lanes: Lanes, address: ir.Value, index: ir.Value) -> ir.Value:
    place = builder.gep(address, [index], source_etype=pointer.stored)
    stored = builder.load(place, typ=vector_of(lanes, pointer.stored), align=pointer.dtype.bitwidth // 8)
    return _widen(builder, stored, pointer.dtype, vector_of(lanes), vector_of(lanes, I32))


def prefetch_line(builder: ir.IRBuilder, pointer: Pointer, address: ir.Value, index: ir.Value) -> None:
    opaque = ir.PointerType()
    function_type = ir.FunctionType(ir.VoidType(), [opaque, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    place = builder.bitcast(builder.gep(address, [index], source_etype=pointer.stored), opaque)
    builder.call(function, [place, *(ir.Constant(I32, flag) for flag in (0, 3, 1))])  # to read, keep near, data


@intrinsic
def load(context, pointer):  # type: ignore[no-untyped-def]
    """Lanes from consecutive elements, widened."""
    lanes = lanes_of(pointer)

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_vector(builder, pointer, lanes, args[0], ir.Constant(ir.IntType(64), 0))

    return lanes(pointer), build


@intrinsic
def _peek(context, pointer, index):  # type: ignore[no-untyped-def]
    element = pointer.dtype

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = STORED[element]
        stored = builder.load(builder.gep(args[0], [args[1]], source_etype=kind), typ=kind)
        if element == types.int32:
            return builder.sext(stored, ir.IntType(64))
        return _widen(builder, stored, element, STORED[pointer.computed], I32)

    return pointer.computed(pointer, types.int64), build


@intrinsic
def prefetch(context, pointer, count):  # type: ignore[no-untyped-def]
    """Asks for `count` elements to be brought near."""
    step = 512 // pointer.dtype.bitwidth

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        zero, line = (ir.Constant(ir.IntType(64), number) for number in (0, step))
        with cgutils.for_range_slice(builder, zero, args[1], line, inc=True) as (index, _):
            prefetch_line(builder, pointer, args[0], index)
        return context.get_dummy_value()

    return types.void(pointer, types.int64), build


@intrinsic
def load_part(context, pointer, count):  # type: ignore[no-untyped-def]
    """Lanes whose first `count` (fewer than the width) come from memory; the rest are 0 and their memory untouched."""
    lanes, element = lanes_of(pointer), pointer.dtype

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = STORED[element]
        whole = vector_of(lanes, stored)
        place = cgutils.alloca_once(builder, whole)
        builder.store(ir.Constant(whole, None), place)
        numbers = builder.bitcast(place, stored.as_pointer())
        with cgutils.for_range(builder, args[1]) as loop:
            one = builder.load(builder.gep(args[0], [loop.index], source_etype=stored), typ=stored)
            builder.store(one, builder.gep(numbers, [loop.index], source_etype=stored))
        return _widen(builder, builder.load(place, typ=whole), element, vector_of(lanes), vector_of(lanes, I32))

    return lanes(pointer, types.int64), build


def _store(builder: ir.IRBuilder, vector: ir.Value, place: ir.Value, lanes: Lanes) -> None:
    builder.store(vector, builder.bitcast(place, vector.type.as_pointer()), align=lanes.element.bitwidth // 8)


@intrinsic
def store(context, pointer, lanes):  # type: ignore[no-untyped-def]
    """Lanes into memory of the type they are computed in."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _store(builder, args[1], args[0], lanes)
        return context.get_dummy_value()

    return types.void(pointer, lanes), build


@intrinsic
def _poke(context, pointer, index, value):  # type: ignore[no-untyped-def]
    element = pointer.dtype

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        number = args[2]
        if element == types.int16:
            number = builder.fptrunc(number, ir.HalfType())
        elif element == types.uint16:
            bits = builder.bitcast(number, I32)
            odd = builder.and_(builder.lshr(bits, constant(I32, 16)), constant(I32, 1))
            rounded = builder.add(bits, builder.add(odd, constant(I32, 0x7FFF)))
            # Rounding up the bits of a NaN could make it infinite, or turn its sign.
            is_nan = builder.fcmp_unordered("uno", number, number)
            rounded = builder.select(is_nan, constant(I32, 0x7FC00000), rounded)
            number = builder.trunc(builder.lshr(rounded, constant(I32, 16)), ir.IntType(16))
        builder.store(number, builder.gep(args[0], [args[1]], source_etype=STORED[element]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, pointer.computed), build


@overload(operator.getitem)
def _getitem(pointer, index):  # type: ignore[no-untyped-def]
    return (lambda pointer, index: _peek(pointer, index)) if isinstance(pointer, Pointer) else None


@overload(operator.setitem)
def _setitem(pointer, index, value):  # type: ignore[no-untyped-def]
    return (lambda pointer, index, value: _poke(pointer, index, value)) if isinstance(pointer, Pointer) else None


@intrinsic
def transpose(context, source, offsets, target, stride):  # type: ignore[no-untyped-def]
    """A square of `width_of(source)` rows, each from its own offset, into the columns of `target`, whose rows lie
    `stride` apart."""
    lanes = lanes_of(source)

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        first, places, into, apart = args
        width, rows = lanes.width, []
        for i in range(width):
            index = ir.Constant(ir.IntType(64), i)
            offset = builder.load(builder.gep(places, [index], source_etype=ir.IntType(64)), typ=ir.IntType(64))
            rows.append(load_vector(builder, source, lanes, first, offset))
        # A perfect shuffle turns the bits of (row, column) by one place: after log2(width) they have changed sides.
        masks = [
            ir.Constant(ir.VectorType(I32, width), [half * width // 2 + i // 2 + (i % 2) * width for i in range(width)])
            for half in (0, 1)
        ]
        for _ in range(int(math.log2(width))):
            pairs = zip(rows[: width // 2], rows[width // 2 :], strict=True)
            rows = [builder.shuffle_vector(a, b, mask) for a, b in pairs for mask in masks]
        for i, row in enumerate(rows):
            offset = builder.mul(apart, ir.Constant(ir.IntType(64), i))
            place = builder.gep(into, [offset], source_etype=STORED[lanes.element])
            _store(builder, row, place, lanes)
        return context.get_dummy_value()

    return types.void(source, offsets, target, types.int64), build
