"""What numba functions do with Lanes: operators, a few functions, sums over the lanes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from tickertape.plugins.backends.transformers.cpu.lanes import I32, STORED, Lanes, constant, lanes_of, vector_of

__all__ = [
    "exponential",
    "fill",
    "fma",
    "fused",
    "hyperbolic_tangent",
    "largest",
    "maximum",
    "minimum",
    "total",
]


def _as_lanes(builder: ir.IRBuilder, lanes: Lanes, kind: types.Type, value: ir.Value) -> ir.Value:
    """The value itself, or a number in every lane."""
    if isinstance(kind, Lanes):
        return value
    if kind.bitwidth > lanes.element.bitwidth:
        value = builder.fptrunc(value, STORED[lanes.element])
    elif kind.bitwidth < lanes.element.bitwidth:
        value = builder.fpext(value, STORED[lanes.element])
    single = builder.insert_element(ir.Constant(vector_of(lanes), ir.Undefined), value, ir.Constant(I32, 0))
    mask = ir.Constant(ir.VectorType(I32, lanes.width), [0] * lanes.width)
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


fused = _external("fma")
"""builder, a, b, c: a * b + c in each lane, rounded once."""


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), b, a)


def _power_of_two(builder: ir.IRBuilder, shifted: ir.Value) -> ir.Value:
    """2 ** n from 1.5 * 2 ** 23 + n: the integer stands in the low bits already."""
    bits = ir.VectorType(I32, shifted.type.count)
    exponent = builder.add(builder.bitcast(shifted, bits), constant(bits, 127))
    return builder.bitcast(builder.shl(exponent, constant(bits, 23)), shifted.type)


def _zero_below(builder: ir.IRBuilder, x: ir.Value, limit: ir.Value, value: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", x, limit), ir.Constant(x.type, None), value)


_add = _elementwise(lambda builder, a, b: builder.fadd(a, b), 2)
_subtract = _elementwise(lambda builder, a, b: builder.fsub(a, b), 2)
_multiply = _elementwise(lambda builder, a, b: builder.fmul(a, b), 2)
_divide = _elementwise(lambda builder, a, b: builder.fdiv(a, b), 2)
_exp64 = _elementwise(_external("exp"), 1)
_two_to = _elementwise(_power_of_two, 1)
_zero_where_below = _elementwise(_zero_below, 3)
fma = _elementwise(fused, 3)
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
                    builder.shuffle_vector(left, left, ir.Constant(ir.VectorType(I32, width), [*range(b, b + width)]))
                    for b in (0, width)
                ]
                left = combine(builder, *halves)
            return builder.extract_element(left, ir.Constant(I32, 0))

        return lanes.element(lanes), build

    return folded


total = _fold(lambda builder, a, b: builder.fadd(a, b))
largest = _fold(_larger)

_LOG2_E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.693147182464599609375  # ln 2 in float32, and what that leaves
_LN2_LOW: Final = -1.904654299957768e-09
_ROUNDER: Final = 12582912.0  # 1.5 * 2 ** 23: added to a small float32 it leaves the nearest integer
_SMALLEST: Final = -87.0  # below, the result is 0 where it would lose precision


def exponential(x: Any) -> Any:
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
