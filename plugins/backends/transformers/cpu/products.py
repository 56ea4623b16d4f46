"""Register tiles of matrix products, written out for the code generator.

A tile is 4 rows of x against as many rows of w as make the number of sums equal the width of a vector: 16 with vectors
of 64 bytes. All sums stay in registers, and one ladder of shuffles turns them into a single vector of totals.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tickertape.plugins.backends.transformers.cpu.arithmetic import fused
from tickertape.plugins.backends.transformers.cpu.lanes import Pointer, lanes_of, load_vector, prefetch_line, vector_of

__all__ = ["TILE_ROWS", "multiply_tile", "sum_tile"]

TILE_ROWS: Final = 4
_I64: Final = ir.IntType(64)


def _number(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


@intrinsic
def multiply_tile(context, x, x_stride, num_x, w, w_stride, num_w, count, ahead, sums, fresh):  # type: ignore[no-untyped-def]
    """Adds to `sums`, one vector per pair of rows, the products of `count` (whole vectors) numbers; `fresh` starts from
    0. Of fewer rows than a tile has, the last stands in for the missing ones; a single row of x is computed alone, its
    sums by the same operations. With `ahead`, that many elements further into each row of w are asked for."""
    lanes = lanes_of(x)
    num_columns = lanes.width // TILE_ROWS

    def starts(builder: ir.IRBuilder, of: Pointer, first: Any, stride: Any, limit: Any, num: int) -> list[ir.Value]:
        last = builder.sub(limit, _number(1))
        indices = [builder.select(builder.icmp_signed("<", _number(i), limit), _number(i), last) for i in range(num)]
        return [builder.gep(first, [builder.mul(i, stride)], source_etype=of.stored) for i in indices]

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        x_first, x_apart, x_limit, w_first, w_apart, w_limit, length, distance, kept, is_fresh = args
        vector = vector_of(lanes)
        x_rows = starts(builder, x, x_first, x_apart, x_limit, TILE_ROWS)
        w_rows = starts(builder, w, w_first, w_apart, w_limit, num_columns)
        places = [
            builder.bitcast(
                builder.gep(kept, [_number(i * lanes.width)], source_etype=sums.stored), vector.as_pointer()
            )
            for i in range(lanes.width)
        ]
        registers = [cgutils.alloca_once(builder, vector) for _ in range(lanes.width)]
        for register in registers:
            builder.store(ir.Constant(vector, None), register)
        with builder.if_then(builder.icmp_signed("==", is_fresh, _number(0))):
            for register, place in zip(registers, places, strict=True):
                builder.store(builder.load(place, typ=vector, align=4), register)

        def loop(rows: list[ir.Value], asks: bool) -> None:
            step = _number(lanes.width)
            with cgutils.for_range_slice(builder, _number(0), length, step, inc=True) as (k, _):
                columns = [load_vector(builder, w, lanes, row, k) for row in w_rows]
                if asks:
                    for row in w_rows:
                        prefetch_line(builder, w, row, builder.add(k, distance))
                for i, row in enumerate(rows):
                    left = load_vector(builder, x, lanes, row, k)
                    for j, right in enumerate(columns):
                        register = registers[i * num_columns + j]
                        total = builder.load(register, typ=vector)
                        builder.store(fused(builder, left, right, total), register)

        asked = builder.icmp_signed("!=", distance, _number(0))
        with builder.if_else(builder.icmp_signed("==", x_limit, _number(1))) as (alone, several):
            for branch, rows in ((alone, x_rows[:1]), (several, x_rows)):
                with branch, builder.if_else(asked) as (asking, silent):
                    with asking:
                        loop(rows, True)
                    with silent:
                        loop(rows, False)
        for register, place in zip(registers, places, strict=True):
            builder.store(builder.load(register, typ=vector), place, align=4)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(x, i64, i64, w, i64, i64, i64, i64, sums, i64), build


@intrinsic
def sum_tile(context, sums):  # type: ignore[no-untyped-def]
    """A tile's vectors summed over their lanes: lane 4 * i (or 2 * i) + j is row i of x times row j of w."""
    lanes = lanes_of(sums)

    def build(context, builder, signature, args):  # type: ignore[no-untyped-def]
        width, vector = lanes.width, vector_of(lanes)
        places = [builder.gep(args[0], [_number(i * width)], source_etype=sums.stored) for i in range(width)]
        left = [builder.load(place, typ=vector, align=4) for place in places]
        masks = [
            ir.Constant(ir.VectorType(ir.IntType(32), width), [2 * i + half for i in range(width)]) for half in (0, 1)
        ]
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=True)
            left = [builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks)) for a, b in pairs]
        return left[0]

    return lanes(sums), build
