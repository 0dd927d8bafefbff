"""Vector instructions for numba: products of packed weights, dot products and weighted sums, written as LLVM code.

numba turns loops into vector instructions where it can prove that this is allowed. The innermost loops of a decoding
step are written out here instead: accumulators stay in registers, and every sum runs over its terms in one fixed order,
whatever the number of rows. The vectors have 16 lanes; LLVM splits them into what the processor has. No compiler is
needed on the user's machine: numba contains one.

Arrays are flat; a part of one is given by its first index, `…_at`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core import config as numba_config
from numba.extending import intrinsic

LANES = 16
"""Numbers of a vector."""

_FLOAT, _BYTE, _SHORT, _INT, _LONG = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_BYTES = ir.VectorType(_BYTE, 4 * LANES)


def host_has(feature: str) -> bool:
    """Whether code may use a feature of the processor, such as "avx512vnni"."""
    chosen: str | None = vars(numba_config)["CPU_FEATURES"]  # set by the user
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


WIDE = host_has("avx512f")
PANEL = 8 if WIDE else 4
"""Vectors of a panel: the columns of a matrix whose sums are in registers at the same time for one row."""

TILE_ROWS, TILE_VECTORS = (3, 8) if WIDE else (3, 2)
"""Rows and vectors whose sums are in registers at the same time for several rows."""


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _constant(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _load(builder: Any, pointer: Any, kind: Any, at: int, align: int = 4) -> Any:
    """The vector that begins `at` entries after the pointer."""
    return builder.load(builder.bitcast(builder.gep(pointer, [_constant(at)]), kind.as_pointer()), align=align)


def _store(builder: Any, value: Any, pointer: Any, at: int) -> None:
    place = builder.bitcast(builder.gep(pointer, [_constant(at)]), value.type.as_pointer())
    builder.store(value, place, align=4)


def _spread(builder: Any, value: Any) -> Any:
    """A vector of 16 equal numbers."""
    empty = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INTS, [0] * LANES))


def _call(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _multiply_add(builder: Any, left: Any, right: Any, sum_: Any) -> Any:
    return _call(builder, f"llvm.fmuladd.v{LANES}f32", _FLOATS, [left, right, sum_])


def _loop(builder: Any, count: Any, zeros: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Run `body(index, sums)` for 0 ≤ index < count, at least once -> the last sums."""
    before, inside, after = builder.block, builder.append_basic_block("sum"), builder.append_basic_block("summed")
    builder.branch(inside)
    builder.position_at_end(inside)
    index, sums = builder.phi(_LONG), [builder.phi(zero.type) for zero in zeros]
    index.add_incoming(_constant(0), before)
    for phi, zero in zip(sums, zeros, strict=True):
        phi.add_incoming(zero, before)
    new = body(index, sums)
    following = builder.add(index, _constant(1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(sums, new, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return new


# Products of packed weights


def _make_tile(rows: int, vectors: int) -> Any:
    """`rows` rows of inputs times `vectors` vectors of columns of a panel, in single precision."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, at, step, inputs, in_at, in_step, sums, out_at, out_step, count = arguments
        kinds = signature.args
        panel = _pointer(context, builder, kinds[0], weights, at)
        row = _pointer(context, builder, kinds[3], inputs, in_at)
        out = _pointer(context, builder, kinds[6], sums, out_at)
        reads = [builder.gep(row, [builder.mul(in_step, _constant(r))]) for r in range(rows)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(panel, [builder.mul(index, step)])
            columns = [_load(builder, line, _FLOATS, LANES * k) for k in range(vectors)]
            scales = [_spread(builder, builder.load(builder.gep(read, [index]))) for read in reads]
            pairs = [(scale, column) for scale in scales for column in columns]
            return [_multiply_add(builder, *pair, total) for pair, total in zip(pairs, totals, strict=True)]

        zeros = [ir.Constant(_FLOATS, [0.0] * LANES)] * (rows * vectors)
        for number, total in enumerate(_loop(builder, count, zeros, body)):
            line = builder.gep(out, [builder.mul(out_step, _constant(number // vectors))])
            _store(builder, total, line, LANES * (number % vectors))
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, weights, at, step, inputs, in_at, in_step, sums, out_at, out_step, count
    ):
        """Panel `weights[at:]` with `step` numbers per input; entries of `sums` are replaced."""
        long = types.int64
        return types.void(weights, long, long, inputs, long, long, sums, long, long, long), generate

    return intrinsic(tile)


def _make_byte_tile(rows: int, vectors: int, multiply: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """The same for 8-bit numbers: unsigned inputs, signed weights, sums in 32 bits, four inputs at a time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, at, step, inputs, in_at, in_step, sums, out_at, out_step, count = arguments
        kinds = signature.args
        panel = _pointer(context, builder, kinds[0], weights, at)
        row = _pointer(context, builder, kinds[3], inputs, in_at)
        out = _pointer(context, builder, kinds[6], sums, out_at)
        reads = [builder.gep(row, [builder.mul(in_step, _constant(r))]) for r in range(rows)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(panel, [builder.mul(index, step)])
            columns = [_load(builder, line, _BYTES, 4 * LANES * k, align=1) for k in range(vectors)]
            new = []
            for r, read in enumerate(reads):
                place = builder.gep(read, [builder.mul(index, _constant(4))])
                four = builder.load(builder.bitcast(place, _INT.as_pointer()), align=1)
                spread = builder.bitcast(_spread(builder, four), _BYTES)
                for k, column in enumerate(columns):
                    new.append(multiply(builder, totals[r * vectors + k], spread, column))
            return new

        zeros = [ir.Constant(_INTS, [0] * LANES)] * (rows * vectors)
        for number, total in enumerate(_loop(builder, count, zeros, body)):
            line = builder.gep(out, [builder.mul(out_step, _constant(number // vectors))])
            _store(builder, total, line, LANES * (number % vectors))
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, weights, at, step, inputs, in_at, in_step, sums, out_at, out_step, count
    ):
        """Panel `weights[at:]` with `step` bytes per four inputs; entries of `sums` are replaced."""
        long = types.int64
        return types.void(weights, long, long, inputs, long, long, sums, long, long, long), generate

    return intrinsic(tile)


def multiply_vnni(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """total + Σ of four products, by the instruction that exists for it."""
    return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, [total, inputs, weights])


def multiply_plain(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """The same for any processor: products of 16-bit numbers, added in pairs, and those again in pairs."""
    wide = ir.VectorType(_INT, 4 * LANES)
    products = builder.mul(builder.zext(inputs, wide), builder.sext(weights, wide))
    for length in (2 * LANES, LANES):
        even, odd = (ir.Constant(ir.VectorType(_INT, length), list(range(k, 2 * length, 2))) for k in (0, 1))
        empty = ir.Constant(products.type, ir.Undefined)
        products = builder.add(
            builder.shuffle_vector(products, empty, even), builder.shuffle_vector(products, empty, odd)
        )
    return builder.add(total, products)


multiply_bytes = multiply_vnni if host_has("avx512vnni") and WIDE else multiply_plain

tile_1x8, tile_1x4, tile_1x2, tile_1x1 = (_make_tile(1, vectors) for vectors in (8, 4, 2, 1))
tile_rows_full = _make_tile(TILE_ROWS, TILE_VECTORS)
tile_rows_1 = _make_tile(TILE_ROWS, 1)
byte_tile_1x8, byte_tile_1x4, byte_tile_1x2, byte_tile_1x1 = (
    _make_byte_tile(1, vectors, multiply_bytes) for vectors in (8, 4, 2, 1)
)
byte_tile_rows_full = _make_byte_tile(TILE_ROWS, TILE_VECTORS, multiply_bytes)
byte_tile_rows_1 = _make_byte_tile(TILE_ROWS, 1, multiply_bytes)


# Attention


def _make_dot(vectors: int) -> Any:
    """The dot product of two runs of 16·`vectors` numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_at, right, right_at = arguments
        one = _pointer(context, builder, signature.args[0], left, left_at)
        other = _pointer(context, builder, signature.args[2], right, right_at)
        total = builder.fmul(_load(builder, one, _FLOATS, 0), _load(builder, other, _FLOATS, 0))
        for k in range(1, vectors):
            pair = _load(builder, one, _FLOATS, LANES * k), _load(builder, other, _FLOATS, LANES * k)
            total = _multiply_add(builder, *pair, total)
        width = LANES
        while width > 1:  # halves are added to halves
            width //= 2
            halves = (ir.Constant(ir.VectorType(_INT, width), [k + s for k in range(width)]) for s in (0, width))
            empty = ir.Constant(total.type, ir.Undefined)
            low, high = (builder.shuffle_vector(total, empty, half) for half in halves)
            total = builder.fadd(low, high)
        return builder.extract_element(total, ir.Constant(_INT, 0))

    def dot(typing, left, left_at, right, right_at):  # type: ignore[no-untyped-def]
        return types.float32(left, types.int64, right, types.int64), generate

    return intrinsic(dot)


def _make_mix(heads: int, vectors: int) -> Any:
    """Σ weight · value of some heads side by side, over runs of 16·`vectors` numbers at places of a pool."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, weights_at, weights_step, places, places_at, count, pool, pool_at, step, head, mixed, mixed_at = (
            arguments
        )
        kinds = signature.args
        weight = _pointer(context, builder, kinds[0], weights, weights_at)
        place = _pointer(context, builder, kinds[3], places, places_at)
        values = _pointer(context, builder, kinds[6], pool, pool_at)
        out = _pointer(context, builder, kinds[10], mixed, mixed_at)
        scales = [builder.gep(weight, [builder.mul(weights_step, _constant(h))]) for h in range(heads)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            slot = builder.sext(builder.load(builder.gep(place, [index])), _LONG)
            value, new = builder.gep(values, [builder.mul(slot, step)]), []
            for h in range(heads):
                scale = _spread(builder, builder.load(builder.gep(scales[h], [index])))
                line = builder.gep(value, [builder.mul(head, _constant(h))])
                for k in range(vectors):
                    vector = _load(builder, line, _FLOATS, LANES * k)
                    new.append(_multiply_add(builder, scale, vector, totals[h * vectors + k]))
            return new

        zeros = [ir.Constant(_FLOATS, [0.0] * LANES)] * (vectors * heads)
        for number, total in enumerate(_loop(builder, count, zeros, body)):
            line = builder.gep(out, [builder.mul(head, _constant(number // vectors))])
            _store(builder, total, line, LANES * (number % vectors))
        return context.get_dummy_value()

    def mix(  # type: ignore[no-untyped-def]
        typing, weights, weights_at, weights_step, places, places_at, count, pool, pool_at, step, head, mixed, mixed_at
    ):
        """Value k begins at pool[pool_at + step · places[places_at + k]]; `count` is at least 1.

        Heads are `weights_step` apart in the weights, and `head` in values and results.
        """
        long = types.int64
        return types.void(weights, long, long, places, long, long, pool, long, long, long, mixed, long), generate

    return intrinsic(mix)


def _largest(typing, values, at, count):  # type: ignore[no-untyped-def]
    """The largest of 16·`count` numbers, at least one vector of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])

        def body(index: Any, totals: list[Any]) -> list[Any]:
            place = builder.gep(start, [builder.mul(index, _constant(LANES))])
            return [_call(builder, f"llvm.maxnum.v{LANES}f32", _FLOATS, [totals[0], _load(builder, place, _FLOATS, 0)])]

        lowest = ir.Constant(_FLOATS, [float("-inf")] * LANES)
        (total,) = _loop(builder, arguments[2], [lowest], body)
        return _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", _FLOAT, [total])

    return types.float32(values, types.int64, types.int64), generate


largest: Any = intrinsic(_largest)
dot_4, dot_2, dot_1 = (_make_dot(vectors) for vectors in (4, 2, 1))
mix_4, mix_2, mix_1 = (_make_mix(1, vectors) for vectors in (4, 2, 1))
mix_heads_4, mix_heads_2, mix_heads_1 = (_make_mix(PANEL // vectors, vectors) for vectors in (4, 2, 1))


# Numbers


def _float_from_bits(typing, bits):  # type: ignore[no-untyped-def]
    """The float32 with the bits of an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), generate


def _bits_of(typing, number):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _INT)

    return types.int32(types.float32), generate


float_from_bits: Any = intrinsic(_float_from_bits)
bits_of: Any = intrinsic(_bits_of)
