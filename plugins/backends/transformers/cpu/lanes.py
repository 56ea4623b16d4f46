"""Vectors of the processor as values inside numba functions: loads that widen, stores that narrow, a few operators.

The code generator's own vectoriser decides by trip counts and aliasing how a sum is associated. With `Lanes` the
association is the one written down, so equal inputs give equal bits wherever a row stands in a batch. Lanes hold the
type that is computed in: float64 for float64, float32 for everything narrower.

Numba knows neither bfloat16 nor, on a CPU, float16. What memory holds is told by the type of the pointer to it:
`uint16` stands for bfloat16 and `int16` for float16 (ELEMENTS).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, overload, register_model

__all__ = [
    "ELEMENTS",
    "Lanes",
    "Pointer",
    "address_of",
    "at",
    "exponential",
    "fetch_add",
    "fill",
    "float64_at",
    "fma",
    "hyperbolic_tangent",
    "int32_at",
    "int64_at",
    "lanes_of",
    "largest",
    "load",
    "load_part",
    "load_vector",
    "maximum",
    "minimum",
    "pointer_like",
    "prefetch",
    "prefetch_line",
    "scratch_like",
    "store",
    "total",
    "transpose",
    "vector_of",
    "width_of",
]

ELEMENTS: Final = {"float64": types.float64, "float32": types.float32, "bfloat16": types.uint16, "float16": types.int16}

_VECTOR_BYTES: Final = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
_I32: Final = ir.IntType(32)
_STORED: Final = {
    types.float64: ir.DoubleType(),
    types.float32: ir.FloatType(),
    types.uint16: ir.IntType(16),
    types.int16: ir.HalfType(),
    types.int32: ir.IntType(32),
    types.int64: ir.IntType(64),
}


class Lanes(types.Type):  # type: ignore[misc]
    """The numba type of a vector of `width` numbers of type `element`."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        self.width = _VECTOR_BYTES * 8 // element.bitwidth
        super().__init__(name=f"Lanes({self.width} x {element})")

    @staticmethod
    def fused(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once."""
        return _fused(builder, a, b, c)


class Pointer(types.Type):  # type: ignore[misc]
    """The numba type of the address of numbers of type `dtype`. `pointer[i]` reads a number, widened to the type that
    is computed in (integers to int64); `pointer[i] = number` rounds to the nearest, even on ties."""

    def __init__(self, dtype: types.Number) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pointer({dtype})")

    @property
    def stored(self) -> ir.Type:
        """An element as the code generator knows it."""
        return _STORED[self.dtype]

    @property
    def computed(self) -> types.Number:
        if self.dtype in (types.int32, types.int64):
            return types.int64
        return types.float64 if self.dtype == types.float64 else types.float32


@register_model(Pointer)
class _PointerModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, pointer: Pointer) -> None:
        super().__init__(manager, pointer, _STORED[pointer.dtype].as_pointer())


@register_model(Lanes)
class _LanesModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, vector_of(lanes))


def vector_of(lanes: Lanes, element: ir.Type | None = None) -> ir.VectorType:
    return ir.VectorType(element or _STORED[lanes.element], lanes.width)


def lanes_of(pointer: Pointer) -> Lanes:
    """What a load through this pointer makes."""
    return Lanes(pointer.computed)


# Addresses


@intrinsic
def pointer_like(context, like, address):  # type: ignore[no-untyped-def]
    """The address as a pointer to what `like` points to."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[1], _STORED[like.dtype].as_pointer())

    return like(like, types.int64), build


@intrinsic
def scratch_like(context, like, address):  # type: ignore[no-untyped-def]
    """The address as a pointer to numbers of the type that `like`'s are computed in."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[1], _STORED[lanes_of(like).element].as_pointer())

    return Pointer(lanes_of(like).element)(like, types.int64), build


@intrinsic
def address_of(context, pointer):  # type: ignore[no-untyped-def]
    return types.int64(pointer), lambda context, builder, signature, args: builder.ptrtoint(args[0], ir.IntType(64))


def _pointer_to(element: types.Type) -> Any:
    @intrinsic
    def pointer(context, address):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.inttoptr(args[0], _STORED[element].as_pointer())

        return Pointer(element)(types.int64), build

    return pointer


int32_at = _pointer_to(types.int32)
int64_at = _pointer_to(types.int64)
float64_at = _pointer_to(types.float64)


@intrinsic
def at(context, pointer, index):  # type: ignore[no-untyped-def]
    """The pointer, `index` elements further."""

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.gep(args[0], [args[1]], source_etype=_STORED[pointer.dtype])

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
    if element == types.uint16:
        shift = _constant(bits, 16)
        return builder.bitcast(builder.shl(builder.zext(stored, bits), shift), wide)
    return stored


def _constant(kind: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


@intrinsic
def width_of(context, pointer):  # type: ignore[no-untyped-def]
    """How many numbers a load through this pointer takes."""
    width = lanes_of(pointer).width
    return types.int64(pointer), lambda context, builder, signature, args: ir.Constant(ir.IntType(64), width)


def load_vector(builder: ir.IRBuilder, pointer: Pointer, lanes: Lanes, address: ir.Value, index: ir.Value) -> ir.Value:
    place = builder.gep(address, [index], source_etype=pointer.stored)
    stored = builder.load(place, typ=vector_of(lanes, pointer.stored), align=pointer.dtype.bitwidth // 8)
    return _widen(builder, stored, pointer.dtype, vector_of(lanes), vector_of(lanes, _I32))


def prefetch_line(builder: ir.IRBuilder, pointer: Pointer, address: ir.Value, index: ir.Value) -> None:
    opaque = ir.PointerType()
    function_type = ir.FunctionType(ir.VoidType(), [opaque, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    place = builder.bitcast(builder.gep(address, [index], source_etype=pointer.stored), opaque)
    builder.call(function, [place, *(ir.Constant(_I32, flag) for flag in (0, 3, 1))])  # to read, keep near, data


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
        kind = _STORED[element]
        stored = builder.load(builder.gep(args[0], [args[1]], source_etype=kind), typ=kind)
        if element == types.int32:
            return builder.sext(stored, ir.IntType(64))
        return _widen(builder, stored, element, _STORED[pointer.computed], _I32)

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
        stored = _STORED[element]
        whole = vector_of(lanes, stored)
        place = cgutils.alloca_once(builder, whole)
        builder.store(ir.Constant(whole, None), place)
        numbers = builder.bitcast(place, stored.as_pointer())
        with cgutils.for_range(builder, args[1]) as loop:
            one = builder.load(builder.gep(args[0], [loop.index], source_etype=stored), typ=stored)
            builder.store(one, builder.gep(numbers, [loop.index], source_etype=stored))
        return _widen(builder, builder.load(place, typ=whole), element, vector_of(lanes), vector_of(lanes, _I32))

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
            bits = builder.bitcast(number, _I32)
            odd = builder.and_(builder.lshr(bits, _constant(_I32, 16)), _constant(_I32, 1))
            rounded = builder.add(bits, builder.add(odd, _constant(_I32, 0x7FFF)))
            # Rounding up the bits of a NaN could make it infinite, or turn its sign.
            is_nan = builder.fcmp_unordered("uno", number, number)
            rounded = builder.select(is_nan, _constant(_I32, 0x7FC00000), rounded)
            number = builder.trunc(builder.lshr(rounded, _constant(_I32, 16)), ir.IntType(16))
        builder.store(number, builder.gep(args[0], [args[1]], source_etype=_STORED[element]))
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
            ir.Constant(
                ir.VectorType(_I32, width), [half * width // 2 + i // 2 + (i % 2) * width for i in range(width)]
            )
            for half in (0, 1)
        ]
        for _ in range(int(math.log2(width))):
            pairs = zip(rows[: width // 2], rows[width // 2 :], strict=True)
            rows = [builder.shuffle_vector(a, b, mask) for a, b in pairs for mask in masks]
        for i, row in enumerate(rows):
            offset = builder.mul(apart, ir.Constant(ir.IntType(64), i))
            place = builder.gep(into, [offset], source_etype=_STORED[lanes.element])
            _store(builder, row, place, lanes)
        return context.get_dummy_value()

    return types.void(source, offsets, target, types.int64), build


# Arithmetic


def _as_lanes(builder: ir.IRBuilder, lanes: Lanes, kind: types.Type, value: ir.Value) -> ir.Value:
    """The value itself, or a number in every lane."""
    if isinstance(kind, Lanes):
        return value
    if kind.bitwidth > lanes.element.bitwidth:
        value = builder.fptrunc(value, _STORED[lanes.element])
    elif kind.bitwidth < lanes.element.bitwidth:
        value = builder.fpext(value, _STORED[lanes.element])
    single = builder.insert_element(ir.Constant(vector_of(lanes), ir.Undefined), value, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, lanes.width), [0] * lanes.width)
    return builder.shuffle_vector(single, single, mask)


def _elementwise(build: Callable[..., ir.Value], num_operands: int) -> Any:
    """A numba function of Lanes and numbers that gives Lanes."""

    def typed(*kinds: types.Type) -> Any:
        lanes = next((kind for kind in kinds if isinstance(kind, Lanes)), None)
        if lanes is None:
            return None

        def lower(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return build(builder, *(_as_lanes(builder, lanes, k, a) for k, a in zip(kinds, args, strict=True)))

        return lanes(*kinds), lower

    if num_operands == 1:
        return intrinsic(lambda context, a: typed(a))
    if num_operands == 2:
        return intrinsic(lambda context, a, b: typed(a, b))
    return intrinsic(lambda context, a, b, c: typed(a, b, c))


def _external(name: str) -> Callable[..., ir.Value]:
    """A call of one of the code generator's own vector functions."""

    def build(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
        kind = operands[0].type
        letter = {"double": "f64", "float": "f32"}[str(kind.element)]
        function_type = ir.FunctionType(kind, [kind] * len(operands))
        function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{kind.count}{letter}")
        return builder.call(function, operands)

    return build


_fused = _external("fma")


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), b, a)


def _power_of_two(builder: ir.IRBuilder, shifted: ir.Value) -> ir.Value:
    """2 ** n from 1.5 * 2 ** 23 + n: the integer stands in the low bits already."""
    bits = ir.VectorType(_I32, shifted.type.count)
    exponent = builder.add(builder.bitcast(shifted, bits), _constant(bits, 127))
    return builder.bitcast(builder.shl(exponent, _constant(bits, 23)), shifted.type)


def _zero_below(builder: ir.IRBuilder, x: ir.Value, limit: ir.Value, value: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", x, limit), ir.Constant(x.type, None), value)


_add = _elementwise(lambda builder, a, b: builder.fadd(a, b), 2)
_subtract = _elementwise(lambda builder, a, b: builder.fsub(a, b), 2)
_multiply = _elementwise(lambda builder, a, b: builder.fmul(a, b), 2)
_divide = _elementwise(lambda builder, a, b: builder.fdiv(a, b), 2)
_exp64 = _elementwise(_external("exp"), 1)
_two_to = _elementwise(_power_of_two, 1)
_zero_where_below = _elementwise(_zero_below, 3)
fma = _elementwise(_fused, 3)
maximum = _elementwise(_larger, 2)
minimum = _elementwise(_smaller, 2)


def _overload_operator(function: Any, implementation: Any) -> None:
    @overload(function)
    def typed(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            return lambda a, b: implementation(a, b)
        return None


_overload_operator(operator.add, _add)
_overload_operator(operator.sub, _subtract)
_overload_operator(operator.mul, _multiply)
_overload_operator(operator.truediv, _divide)


@intrinsic
def fill(context, pointer, number):  # type: ignore[no-untyped-def]
    """The number in every lane of what a load through `pointer` makes."""
    lanes = lanes_of(pointer)

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _as_lanes(builder, lanes, number, args[1])

    return lanes(pointer, number), build


def _fold(combine: Callable[..., ir.Value]) -> Any:
    """Lanes to one number, by halves: the order of the sum is part of the result."""

    @intrinsic
    def folded(context, lanes):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
            (left,) = args
            width = lanes.width
            while width > 1:
                width //= 2
                halves = [
                    builder.shuffle_vector(left, left, ir.Constant(ir.VectorType(_I32, width), [*range(b, b + width)]))
                    for b in (0, width)
                ]
                left = combine(builder, *halves)
            return builder.extract_element(left, ir.Constant(_I32, 0))

        return lanes.element(lanes), build

    return folded


total = _fold(lambda builder, a, b: builder.fadd(a, b))
largest = _fold(_larger)

_LOG2_E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.693147182464599609375  # ln 2 in float32, and what that leaves
_LN2_LOW: Final = -1.904654299957768e-09
_ROUNDER: Final = 12582912.0  # 1.5 * 2 ** 23: added to a small float32 it leaves the nearest integer
_SMALLEST: Final = -87.0  # below, the result is 0 where it would lose precision


def exponential(x):  # type: ignore[no-untyped-def]
    """e ** x in each lane, for x <= 88 when that is float32; NaN stays NaN."""
    raise TypeError("inside numba only")


@overload(exponential)
def _exponential(x):  # type: ignore[no-untyped-def]
    if x.element == types.float64:
        return lambda x: _exp64(x)

    def float32(x):  # type: ignore[no-untyped-def]
        shifted = fma(x, _LOG2_E, _ROUNDER)
        n = shifted - _ROUNDER
        r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
        # The series, to the term that falls below half a unit in the last place for |r| <= ln 2 / 2.
        p = fma(r, 1 / 5040, 1 / 720)
        p = fma(p, r, 1 / 120)
        p = fma(p, r, 1 / 24)
        p = fma(p, r, 1 / 6)
        p = fma(p, r, 1 / 2)
        p = fma(p, r, 1.0)
        p = fma(p, r, 1.0)
        return _zero_where_below(x, _SMALLEST, p * _two_to(shifted))

    return float32


@njit
def hyperbolic_tangent(x):  # type: ignore[no-untyped-def]
    """tanh in each lane, to within a few units in the last place of 1."""
    grown = exponential(minimum(x * 2.0, 80.0))
    return (grown - 1.0) / (grown + 1.0)
