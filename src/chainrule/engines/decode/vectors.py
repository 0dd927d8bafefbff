"""Vector instructions for numba: scores and weighted sums of attention, sums and maxima, written as LLVM code.

numba turns loops into vector instructions where it can prove that this is allowed. The innermost loops of a decoding
step are written out here instead: accumulators stay in registers, and every sum runs over its terms in one fixed order,
whatever the number of rows. The vectors have 16 lanes; LLVM splits them into what the processor has. No compiler is
needed on the user's machine: numba contains one. The products of packed weights are in `tiles.py`.

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

FLOAT, BYTE, SHORT, INT, LONG = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)


Term = Callable[[Any, Any, Any, Any], Any]
"""The builder, two vectors, and the total so far or None -> the total with their term."""


def host_has(feature: str) -> bool:
    """Whether code may use a feature of the processor, such as "avx512vnni"."""
    chosen: str | None = vars(numba_config)["CPU_FEATURES"]  # set by the user
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


WIDE = host_has("avx512f")
PANEL = 4 if WIDE else 2
"""Vectors of a panel: the columns of a matrix whose sums are in registers at the same time."""

MIXED = 8 if WIDE else 4
"""Vectors of a mixture of values whose sums are in registers at the same time."""


def pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def constant(value: int) -> Any:
    return ir.Constant(LONG, value)


def load(builder: Any, pointer: Any, kind: Any, at: int, align: int = 4) -> Any:
    """The vector that begins `at` entries after the pointer."""
    return builder.load(builder.bitcast(builder.gep(pointer, [constant(at)]), kind.as_pointer()), align=align)


def store(builder: Any, value: Any, pointer: Any, at: int) -> None:
    place = builder.bitcast(builder.gep(pointer, [constant(at)]), value.type.as_pointer())
    builder.store(value, place, align=1 if value.type.element == BYTE else 4)


def spread(builder: Any, value: Any, lanes: int = LANES) -> Any:
    """A vector of equal numbers."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(INT, lanes), [0] * lanes))


def call(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def multiply_add(builder: Any, left: Any, right: Any, sum_: Any) -> Any:
    return call(builder, f"llvm.fmuladd.v{LANES}f32", FLOATS, [left, right, sum_])


def loop(builder: Any, count: Any, zeros: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Run `body(index, sums)` for 0 ≤ index < count, at least once -> the last sums."""
    before, inside, after = builder.block, builder.append_basic_block("sum"), builder.append_basic_block("summed")
    builder.branch(inside)
    builder.position_at_end(inside)
    index, sums = builder.phi(LONG), [builder.phi(zero.type) for zero in zeros]
    index.add_incoming(constant(0), before)
    for phi, zero in zip(sums, zeros, strict=True):
        phi.add_incoming(zero, before)
    new = body(index, sums)
    following = builder.add(index, constant(1))
    index.add_incoming(following, builder.block)
    for phi, value in zip(sums, new, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return new


def unrolled_loop(
    builder: Any, count: Any, zeros: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]], times: int
) -> list[Any]:
    """The same, also for a count of 0; a pass of the loop has `times` bodies, and a second loop does the rest."""

    def several(index: Any, sums: list[Any]) -> list[Any]:
        for shift in range(times):
            sums = body(builder.add(index, constant(shift)), sums)
        return sums

    whole = builder.sub(count, builder.srem(count, constant(times)))
    sums = _while_below(builder, (constant(0), whole, times), zeros, several)
    return _while_below(builder, (whole, count, 1), sums, body)


def _while_below(
    builder: Any, bounds: tuple[Any, Any, int], zeros: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Run `body(index, sums)` from begin to end by steps -> the last sums."""
    (begin, end, step), before = bounds, builder.block
    head, inside, after = map(builder.append_basic_block, ("head", "sum", "summed"))
    builder.branch(head)
    builder.position_at_end(head)
    index, sums = builder.phi(LONG), [builder.phi(zero.type) for zero in zeros]
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    new, following = body(index, sums), builder.add(index, constant(step))
    for phi, first, later in zip([index, *sums], [begin, *zeros], [following, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return sums


def larger(builder: Any, left: Any, right: Any) -> Any:
    """The larger of each pair, or the right one if the left is not a number. `maxnum` takes three instructions."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def add_halves(builder: Any, total: Any) -> Any:
    """The sum of the lanes: halves are added to halves."""
    return fold_halves(builder, total, builder.fadd)


def fold_halves(builder: Any, total: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """All lanes combined, halves with halves."""
    width = LANES
    while width > 1:
        width //= 2
        halves = (ir.Constant(ir.VectorType(INT, width), [k + s for k in range(width)]) for s in (0, width))
        empty = ir.Constant(total.type, ir.Undefined)
        low, high = (builder.shuffle_vector(total, empty, half) for half in halves)
        total = combine(low, high)
    return builder.extract_element(total, ir.Constant(INT, 0))


# Attention


def _add_product(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """total + left · right; without a total yet, the product."""
    return builder.fmul(left, right) if total is None else multiply_add(builder, left, right, total)


def _add_energy(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """total + ReLU(left + right)²."""
    positive = larger(builder, builder.fadd(left, right), ir.Constant(FLOATS, [0.0] * LANES))
    return _add_product(builder, positive, positive, total)


def _make_dot(vectors: int, add: Term = _add_product) -> Any:
    """Σ of the terms of two runs of 16·`vectors` numbers, by default their products."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_at, right, right_at = arguments
        one = pointer(context, builder, signature.args[0], left, left_at)
        other = pointer(context, builder, signature.args[2], right, right_at)
        total = None
        for k in range(vectors):
            pair = load(builder, one, FLOATS, LANES * k), load(builder, other, FLOATS, LANES * k)
            total = add(builder, *pair, total)
        return add_halves(builder, total)

    def dot(typing, left, left_at, right, right_at):  # type: ignore[no-untyped-def]
        return types.float32(left, types.int64, right, types.int64), generate

    return intrinsic(dot)


ORDER = (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15)
"""Where the vectors of 16 dot products are put, so that their sums come out in order."""


def _add_up(builder: Any, parts: list[Any]) -> Any:
    """The sum of each of 16 vectors, as a vector. Halves are added to halves, as in a single dot product."""
    width = LANES // 2
    while len(parts) > 1:
        half = len(parts) // 2
        low = [lane + group for group in range(0, LANES, 2 * width) for lane in range(width)]
        sides = [[*own, *(lane + LANES for lane in own)] for own in (low, [lane + width for lane in low])]
        masks = [ir.Constant(INTS, side) for side in sides]
        pairs = [[builder.shuffle_vector(parts[k], parts[k + half], mask) for mask in masks] for k in range(half)]
        parts, width = [builder.fadd(*pair) for pair in pairs], width // 2
    return parts[0]


def _make_scores(vectors: int, add: Term = _add_product) -> Any:
    """Sums of the terms of each head of a query, 16·`vectors` wide, with 16 keys at places of a pool."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, query_at, pool, keys_at, step, places, first, last, heads, scale, scores, scores_at, room = arguments
        kinds = signature.args
        own = pointer(context, builder, kinds[0], query, query_at)
        keys = pointer(context, builder, kinds[2], pool, keys_at)
        place = pointer(context, builder, kinds[5], places, constant(0))
        out = pointer(context, builder, kinds[10], scores, scores_at)
        factor, lines = spread(builder, scale), [keys] * LANES
        for p in range(LANES):  # there may be fewer: the last is read again
            index = builder.add(first, constant(p))
            index = builder.select(builder.icmp_signed("<", index, last), index, last)
            slot = builder.sext(builder.load(builder.gep(place, [index])), LONG)
            lines[ORDER[p]] = builder.gep(keys, [builder.mul(slot, step)])

        def body(head: Any, _: list[Any]) -> list[Any]:
            shift = builder.mul(head, constant(LANES * vectors))
            part = builder.gep(own, [shift])
            numbers, totals = [load(builder, part, FLOATS, LANES * k) for k in range(vectors)], []
            for line in lines:
                key = builder.gep(line, [shift])
                total = None
                for k in range(vectors):
                    total = add(builder, numbers[k], load(builder, key, FLOATS, LANES * k), total)
                totals.append(total)
            store(
                builder, builder.fmul(factor, _add_up(builder, totals)), builder.gep(out, [builder.mul(head, room)]), 0
            )
            return []

        loop(builder, heads, [], body)
        return context.get_dummy_value()

    def score(  # type: ignore[no-untyped-def]
        typing, query, query_at, pool, keys_at, step, places, first, last, heads, scale, scores, scores_at, room
    ):
        """Keys places[first], …, places[last] and at most 16; heads are `room` apart in the scores."""
        long = types.int64
        inner = query, long, pool, long, long, places, long, long, long, types.float32, scores, long, long
        return types.void(*inner), generate

    return intrinsic(score)


def _make_mix(heads: int, vectors: int) -> Any:
    """Σ weight · value of some heads side by side, over runs of 16·`vectors` numbers at places of a pool."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, weights_at, weights_step, places, places_at, count, pool, pool_at, step, head, mixed, mixed_at = (
            arguments
        )
        kinds = signature.args
        weight = pointer(context, builder, kinds[0], weights, weights_at)
        place = pointer(context, builder, kinds[3], places, places_at)
        values = pointer(context, builder, kinds[6], pool, pool_at)
        out = pointer(context, builder, kinds[10], mixed, mixed_at)
        scales = [builder.gep(weight, [builder.mul(weights_step, constant(h))]) for h in range(heads)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            slot = builder.sext(builder.load(builder.gep(place, [index])), LONG)
            value, new = builder.gep(values, [builder.mul(slot, step)]), []
            for h in range(heads):
                scale = spread(builder, builder.load(builder.gep(scales[h], [index])))
                line = builder.gep(value, [builder.mul(head, constant(h))])
                for k in range(vectors):
                    vector = load(builder, line, FLOATS, LANES * k)
                    new.append(multiply_add(builder, scale, vector, totals[h * vectors + k]))
            return new

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (vectors * heads)
        for number, total in enumerate(loop(builder, count, zeros, body)):
            line = builder.gep(out, [builder.mul(head, constant(number // vectors))])
            store(builder, total, line, LANES * (number % vectors))
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


def _make_largest(*, sizes: bool) -> Any:
    """The largest of 16·`count` numbers, at least one vector of them, or the largest absolute value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = pointer(context, builder, signature.args[0], arguments[0], arguments[1])

        def body(index: Any, totals: list[Any]) -> list[Any]:
            vector = load(builder, builder.gep(start, [builder.mul(index, constant(LANES))]), FLOATS, 0)
            if sizes:
                vector = call(builder, f"llvm.fabs.v{LANES}f32", FLOATS, [vector])
            return [larger(builder, vector, totals[0])]

        lowest = ir.Constant(FLOATS, [float("-inf")] * LANES)
        (total,) = loop(builder, arguments[2], [lowest], body)
        return fold_halves(builder, total, lambda left, right: larger(builder, left, right))

    def largest(typing, values, at, count):  # type: ignore[no-untyped-def]
        return types.float32(values, types.int64, types.int64), generate

    return intrinsic(largest)


largest, largest_size = (_make_largest(sizes=sizes) for sizes in (False, True))
score_4, score_2, score_1 = (_make_scores(vectors) for vectors in (4, 2, 1))
energy_4, energy_2, energy_1 = (_make_scores(vectors, _add_energy) for vectors in (4, 2, 1))
dot_4, dot_1 = (_make_dot(vectors) for vectors in (4, 1))
energy_of_lanes = _make_dot(1, _add_energy)
mix_4, mix_2, mix_1 = (_make_mix(1, vectors) for vectors in (4, 2, 1))
mix_heads_4, mix_heads_2, mix_heads_1 = (_make_mix(MIXED // vectors, vectors) for vectors in (4, 2, 1))


# Numbers


def _float_from_bits(typing, bits):  # type: ignore[no-untyped-def]
    """The float32 with the bits of an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


def _bits_of(typing, number):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], INT)

    return types.int32(types.float32), generate


float_from_bits: Any = intrinsic(_float_from_bits)
bits_of: Any = intrinsic(_bits_of)
