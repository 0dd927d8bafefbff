"""Products of packed weights, written as LLVM code: a tile is some rows of inputs times some vectors of columns.

The sums of a tile stay in registers. At its end they become outputs: 8-bit products are scaled, the bias is added, and
each number is written once. A tile is as wide as a panel, so that it reads the weights as one stream, which a processor
fetches ahead; more rows read them less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.vectors import (
    BYTE,
    FLOATS,
    INT,
    INTS,
    LANES,
    PANEL,
    WIDE,
    call,
    constant,
    host_has,
    load,
    multiply_add,
    pointer,
    spread,
    store,
    unrolled_loop,
)

BYTES = ir.VectorType(BYTE, 4 * LANES)

TILE_ROWS = 6 if WIDE else 3
"""Rows of the tile for many rows; it is as wide as a panel."""


UNROLLED = 4
"""Inputs of one row between two tests for the last one: with a test after each, weights are read 30% more slowly."""


def _make_tile(rows: int, vectors: int) -> Any:
    """`rows` rows of inputs times `vectors` vectors of columns of a panel, in single precision."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, at, step, bias_at, inputs, in_at, in_step, outputs, out_at, out_step, count = arguments
        kinds = signature.args
        panel = pointer(context, builder, kinds[0], weights, at)
        bias = pointer(context, builder, kinds[0], weights, bias_at)
        row = pointer(context, builder, kinds[4], inputs, in_at)
        out = pointer(context, builder, kinds[7], outputs, out_at)
        reads = [builder.gep(row, [builder.mul(in_step, constant(r))]) for r in range(rows)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(panel, [builder.mul(index, step)])
            columns = [load(builder, line, FLOATS, LANES * k) for k in range(vectors)]
            scales = [spread(builder, builder.load(builder.gep(read, [index]))) for read in reads]
            pairs = [(scale, column) for scale in scales for column in columns]
            return [multiply_add(builder, *pair, total) for pair, total in zip(pairs, totals, strict=True)]

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (rows * vectors)
        totals = unrolled_loop(builder, count, zeros, body, UNROLLED if rows == 1 else 1)
        for k in range(vectors):
            terms = load(builder, bias, FLOATS, LANES * k)
            for r in range(rows):
                line = builder.gep(out, [builder.mul(out_step, constant(r))])
                store(builder, builder.fadd(totals[r * vectors + k], terms), line, LANES * k)
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, weights, at, step, bias_at, inputs, in_at, in_step, outputs, out_at, out_step, count
    ):
        """Panel `weights[at:]` with `step` numbers per input, and its bias, which lies in `weights` too."""
        long = types.int64
        return types.void(weights, long, long, long, inputs, long, long, outputs, long, long, long), generate

    return intrinsic(tile)


def _make_byte_tile(rows: int, vectors: int, multiply: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """The same for 8-bit numbers: unsigned inputs, signed weights, sums in 32 bits, four inputs at a time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, at, step, inputs, in_at, in_step, scales, row_at, terms, outputs, out_at, out_step, count = arguments
        kinds = signature.args
        panel = pointer(context, builder, kinds[0], weights, at)
        row = pointer(context, builder, kinds[3], inputs, in_at)
        scale = pointer(context, builder, kinds[6], scales, row_at)
        out = pointer(context, builder, kinds[9], outputs, out_at)
        columns_of = _columns(context, builder, kinds[8], terms)
        reads = [builder.gep(row, [builder.mul(in_step, constant(r))]) for r in range(rows)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(panel, [builder.mul(index, step)])
            columns = [load(builder, line, BYTES, 4 * LANES * k, align=1) for k in range(vectors)]
            new = []
            for r, read in enumerate(reads):
                place = builder.gep(read, [builder.mul(index, constant(4))])
                four = builder.load(builder.bitcast(place, INT.as_pointer()), align=1)
                inputs_64 = builder.bitcast(spread(builder, four), BYTES)
                for k, column in enumerate(columns):
                    new.append(multiply(builder, totals[r * vectors + k], inputs_64, column))
            return new

        zeros = [ir.Constant(INTS, [0] * LANES)] * (rows * vectors)
        totals = unrolled_loop(builder, count, zeros, body, UNROLLED if rows == 1 else 1)
        factors = [spread(builder, load(builder, scale, FLOATS.element, r)) for r in range(rows)]
        for k in range(vectors):
            offset, unit, bias = columns_of(k)
            for r in range(rows):
                whole = builder.sitofp(builder.sub(totals[r * vectors + k], offset), FLOATS)
                value = builder.fadd(builder.fmul(whole, builder.fmul(factors[r], unit)), bias)
                store(builder, value, builder.gep(out, [builder.mul(out_step, constant(r))]), LANES * k)
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, weights, at, step, inputs, in_at, in_step, scales, row_at, terms, outputs, out_at, out_step, count
    ):
        """Panel `weights[at:]` with `step` bytes per four inputs.

        terms    (integers, offset_at, floats, scale_at, bias_at): an output is (sum - offset) · scale of the row ·
                 scale of the column + bias
        """
        long = types.int64
        inner = weights, long, long, inputs, long, long, scales, long, terms, outputs, long, long, long
        return types.void(*inner), generate

    return intrinsic(tile)


def _columns(context: Any, builder: Any, kind: Any, terms: Any) -> Callable[[int], tuple[Any, Any, Any]]:
    """Offsets, scales and biases of the vectors of columns."""
    integers, offset_at, floats, scale_at, bias_at = (builder.extract_value(terms, place) for place in range(5))
    offset = pointer(context, builder, kind[0], integers, offset_at)
    unit = pointer(context, builder, kind[2], floats, scale_at)
    bias = pointer(context, builder, kind[2], floats, bias_at)

    def of(k: int) -> tuple[Any, Any, Any]:
        shift = LANES * k
        return (
            load(builder, offset, INTS, shift),
            load(builder, unit, FLOATS, shift),
            load(builder, bias, FLOATS, shift),
        )

    return of


def multiply_vnni(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """total + Σ of four products, by the instruction that exists for it."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [total, inputs, weights])


def multiply_plain(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """The same for any processor: products of 16-bit numbers, added in pairs, and those again in pairs."""
    wide = ir.VectorType(INT, 4 * LANES)
    products = builder.mul(builder.zext(inputs, wide), builder.sext(weights, wide))
    for length in (2 * LANES, LANES):
        even, odd = (ir.Constant(ir.VectorType(INT, length), list(range(k, 2 * length, 2))) for k in (0, 1))
        empty = ir.Constant(products.type, ir.Undefined)
        products = builder.add(
            builder.shuffle_vector(products, empty, even), builder.shuffle_vector(products, empty, odd)
        )
    return builder.add(total, products)


multiply_bytes = multiply_vnni if host_has("avx512vnni") and WIDE else multiply_plain

tile_1x4, tile_1x2, tile_1x1 = (_make_tile(1, vectors) for vectors in (4, 2, 1))
tile_2_full, tile_3_full, tile_4_full, tile_5_full, tile_6_full = (_make_tile(rows, PANEL) for rows in range(2, 7))
tile_2_1, tile_3_1, tile_4_1, tile_5_1, tile_6_1 = (_make_tile(rows, 1) for rows in range(2, 7))
byte_tile_1x4, byte_tile_1x2, byte_tile_1x1 = (_make_byte_tile(1, vectors, multiply_bytes) for vectors in (4, 2, 1))
byte_tile_2_full, byte_tile_3_full, byte_tile_4_full, byte_tile_5_full, byte_tile_6_full = (
    _make_byte_tile(rows, PANEL, multiply_bytes) for rows in range(2, 7)
)
byte_tile_2_1, byte_tile_3_1, byte_tile_4_1, byte_tile_5_1, byte_tile_6_1 = (
    _make_byte_tile(rows, 1, multiply_bytes) for rows in range(2, 7)
)
