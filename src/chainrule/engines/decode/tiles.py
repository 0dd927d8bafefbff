"""Products of packed weights, written as LLVM code: a tile is some rows of inputs times some vectors of columns.

The sums of a tile stay in registers. At its end they become outputs: 8-bit products are scaled, the bias is added, and
each number is written once. A tile is as wide as a panel, so that it reads the weights as one stream, which a processor
fetches ahead; more rows read them less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    SHORT,
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

TILE_ROWS = 6
"""Rows of the tile for many rows."""

FULL_ROWS = 6 if WIDE else 2
"""Rows of the largest tile that is as wide as a panel; the sums of more would not fit in the registers."""


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


def _make_byte_tile(rows: int, vectors: int, arithmetic: ByteArithmetic) -> Any:
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
            columns = [arithmetic.weights(builder, line, 4 * LANES * k) for k in range(vectors)]
            new = []
            for r, read in enumerate(reads):
                place = builder.gep(read, [builder.mul(index, constant(4))])
                four = arithmetic.inputs(builder, builder.load(builder.bitcast(place, INT.as_pointer()), align=1))
                for k, column in enumerate(columns):
                    new.append(arithmetic.multiply(builder, totals[r * vectors + k], four, column))
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


class ByteArithmetic(NamedTuple):
    """How a vector of columns is multiplied by four inputs. The results are the same for all."""

    name: str
    pairs: bool  # the weights of two inputs lie together, for all columns, and then those of the other two
    weights: Callable[[Any, Any, int], Any]  # builder, pointer and place -> weights in registers
    inputs: Callable[[Any, Any], Any]  # builder and four inputs as one number -> inputs in registers
    multiply: Callable[[Any, Any, Any, Any], Any]  # builder, total, inputs, weights -> total


def _load_fours(builder: Any, line: Any, at: int) -> Any:
    return load(builder, line, BYTES, at, align=1)


def _spread_fours(builder: Any, four: Any) -> Any:
    return builder.bitcast(spread(builder, four), BYTES)


def _multiply_vnni(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """total + Σ of four products, by the instruction that exists for it."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [total, inputs, weights])


def _multiply_plain(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
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


SHORTS = ir.VectorType(SHORT, 16)


def _load_pairs(builder: Any, line: Any, at: int) -> list[Any]:
    """Weights as 16-bit numbers: of the first two inputs for eight columns and eight more, then of the other two."""
    parts = (load(builder, line, ir.VectorType(BYTE, 16), at + 16 * k, align=1) for k in range(4))
    return [builder.sext(part, SHORTS) for part in parts]


def _spread_pairs(builder: Any, four: Any) -> list[Any]:
    """The first two inputs, again and again, as 16-bit numbers, and the other two."""
    pairs = builder.trunc(four, SHORT), builder.trunc(builder.lshr(four, ir.Constant(INT, 16)), SHORT)
    equal = [spread(builder, pair, 8) for pair in pairs]
    return [builder.zext(builder.bitcast(one, ir.VectorType(BYTE, 16)), SHORTS) for one in equal]


def _multiply_pairs(builder: Any, total: Any, inputs: list[Any], weights: list[Any]) -> Any:
    """The same by the instruction that multiplies 16-bit numbers and adds neighbours."""
    half, empty = ir.VectorType(INT, 8), ir.Constant(INTS, ir.Undefined)
    sums = []
    for first in (0, 8):
        some = ir.Constant(half, list(range(first, first + 8)))
        sum_ = builder.shuffle_vector(total, empty, some)
        for pair, factor in zip(inputs, weights[first // 8 :: 2], strict=True):
            sum_ = builder.add(sum_, call(builder, "llvm.x86.avx2.pmadd.wd", half, [pair, factor]))
        sums.append(sum_)
    return builder.shuffle_vector(*sums, ir.Constant(INTS, list(range(LANES))))


VNNI = ByteArithmetic("vnni", False, _load_fours, _spread_fours, _multiply_vnni)
PAIRS = ByteArithmetic("pairs", True, _load_pairs, _spread_pairs, _multiply_pairs)
PLAIN = ByteArithmetic("plain", False, _load_fours, _spread_fours, _multiply_plain)

byte_arithmetic = VNNI if host_has("avx512vnni") and WIDE else PAIRS if host_has("avx2") else PLAIN
"""How this machine multiplies 8-bit numbers."""

tile_1x4, tile_1x2, tile_1x1 = (_make_tile(1, vectors) for vectors in (4, 2, 1))
tile_2_full, tile_3_full, tile_4_full, tile_5_full, tile_6_full = (_make_tile(rows, PANEL) for rows in range(2, 7))
tile_2_1, tile_3_1, tile_4_1, tile_5_1, tile_6_1 = (_make_tile(rows, 1) for rows in range(2, 7))
byte_tile_1x4, byte_tile_1x2, byte_tile_1x1 = (_make_byte_tile(1, vectors, byte_arithmetic) for vectors in (4, 2, 1))
byte_tile_2_full, byte_tile_3_full, byte_tile_4_full, byte_tile_5_full, byte_tile_6_full = (
    _make_byte_tile(rows, PANEL, byte_arithmetic) for rows in range(2, 7)
)
byte_tile_2_1, byte_tile_3_1, byte_tile_4_1, byte_tile_5_1, byte_tile_6_1 = (
    _make_byte_tile(rows, 1, byte_arithmetic) for rows in range(2, 7)
)
