"""log10 p of sentences of words in one compiled call, from their bytes to the sum over their words.

A sentence takes a few microseconds, so the cost of a call matters. A numba function finds out the types of all its
arguments at each call. The kernels here have one signature, and its entry is called directly, with the address of one
record that holds the addresses and sizes of all arrays. They are compiled for the types that the arrays of a table
have. Calls keep the interpreter lock.

Words are separated by white space of ASCII, as in KenLM. `<s>` and `</s>` are one token of a table, but the context
after a literal one depends on which it is: the score of a sentence that contains one is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import repeat
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from chainrule.base.arrays import Array
from chainrule.engines.ngram.model import NgramArrays
from chainrule.engines.ngram.query_kernels import first_child, walk_kernel
from chainrule.engines.ngram.table import BINS, NgramTable, value
from chainrule.text.tokenizers.word_kernels import look_up_into, split_ascii
from chainrule.text.tokenizers.word_table import TokenIndex

carray: Any = numba.carray  # type: ignore[attr-defined]  # numba does not list it
ENDS = ("</s>", "<s>")
BLOCK = 1 << 12
"""Sentences of one call."""

Word = tuple[float, int, bool]
"""log10 p of a word, the words of the n-gram that was found, and whether the word is unknown."""

TABLE = ("words", "first_words", "first_groups", "first_steps", "probs", "prob_table", "backoffs", "backoff_table")
INDEX = ("slots", "text", "offsets")
SCRATCH = {"starts": np.int64, "ends": np.int64, "tokens": np.int32, "scores": np.float32, "matched": np.uint8}
ROOM = 1 << 10
"""Words of a sentence for which there is working memory; for longer ones it is allocated at the call."""
NUMBERS = ("order", "eos", "size", "missing", "stride")
RECORD = np.dtype(
    [("absent", "f8"), *((name, "i8") for name in NUMBERS)]
    + [(name, "i8") for array in (*TABLE, *INDEX, *SCRATCH) for name in (array, f"{array}_size")]
)
"""What the kernels are passed: the numbers of the table, then the address and the size of each array."""

BYTES, WRITABLE, ADDRESS = numba.typeof(b""), numba.typeof(bytearray()), types.intp
ABOUT = numba.from_dtype(RECORD)


class _Results:
    """Room for the scores of words: their bytes, and how they are read."""

    def __init__(self, size: int) -> None:
        self.scores, self.matched, self.oov = bytearray(4 * size), bytearray(size), bytearray(size)
        self._scores, self._oov = memoryview(self.scores).cast("f"), memoryview(self.oov).cast("?")

    def words(self, size: int, unknown: bool) -> Iterator[Word]:
        """The first `size` words. `unknown`: some are not in the vocabulary."""
        oov: Any = self._oov[:size].tolist() if unknown else repeat(False, size)
        return zip(self._scores[:size].tolist(), self.matched[:size], oov, strict=True)


class SentenceScorer:
    """Scores the sentences of one table. `words` are the names of its tokens, in order."""

    def __init__(self, table: NgramTable, words: Sequence[str], unk: int) -> None:
        self._table, self._arrays = table, NgramArrays(table)
        named = ["" if word in ENDS else word for word in words]
        named[unk], named[table.eos] = "", "\n"
        self._index = TokenIndex([*named, *ENDS], missing=unk)
        self._kept = {name: getattr(table.arrays, name) for name in TABLE}
        self._kept |= {name: getattr(self._index, name) for name in INDEX}
        self._kept |= {name: np.empty(ROOM, kind) for name, kind in SCRATCH.items()}
        stride = BINS if table.arrays.backoffs.dtype == np.uint8 else 0
        numbers = {"eos": table.eos, "size": table.vocab_size, "missing": unk, "stride": stride, "order": table.order}
        self._about = np.zeros(1, RECORD)
        for name, number in {"absent": table.absent, **numbers}.items():
            self._about[name] = number
        for name, array in self._kept.items():
            self._about[name], self._about[f"{name}_size"] = array.ctypes.data, len(array)
        self.address = int(self._about.ctypes.data)
        self._types = _types_of(table)
        self._out = _Results(ROOM)

    def score_block(self, data: bytes) -> list[float]:
        """log10 p of the lines of a text, each between `<s>` and `</s>`; NaN where one is a word of it."""
        tokens_N = self._index.encode(data, unicode=False)
        ends_N = tokens_N >= self._table.vocab_size
        literal = bool(ends_N.any())
        log10_N, _ = self._arrays.walk_lines(np.minimum(tokens_N, self._table.vocab_size - 1) if literal else tokens_N)
        if literal:
            log10_N[ends_N] = np.nan
        starts_M = np.flatnonzero(tokens_N == self._table.eos) + 1
        starts_M[1:], starts_M[:1] = starts_M[:-1].copy(), 0
        scores: list[float] = np.add.reduceat(log10_N, starts_M, dtype=np.float64).tolist()
        return scores

    def full_scores(self, data: bytes, bos: bool, eos: bool) -> Iterator[Word] | None:
        """The score of each word; None if one of them is `<s>` or `</s>`."""
        out = self._out if len(data) < ROOM else _Results(len(data) // 2 + 2)
        count = self._full_scores(data, self.address, bos, eos, out.scores, out.matched, out.oov)
        return None if count < 0 else out.words(count >> 1, bool(count & 1))

    @property
    def matched(self) -> int:
        """The words of the n-gram that the last `step` found."""
        return int(self._kept["matched"][0])

    # Compiled when they are first used

    @cached_property
    def score(self) -> Callable[[bytes, int, bool, bool], float]:
        """(bytes, address, bos, eos) -> log10 p of a sentence; NaN if it contains `<s>` or `</s>`."""
        return _entry(_make_score(self._types))

    @cached_property
    def _full_scores(self) -> Callable[..., int]:
        return _entry(_make_full_scores(self._types))

    @cached_property
    def step(self) -> Callable[[int, bytearray, int, bytearray], float]:
        """(address, state, token, state after it, which is filled in) -> log10 p of the token."""
        return _entry(_make_step(self._types))


def _entry(kernel: Any) -> Callable[..., Any]:
    """The compiled function of a kernel with one signature: its arguments must have the types of the signature."""
    (compiled,) = kernel.overloads.values()
    entry: Callable[..., Any] = compiled.entry_point
    return entry


def _types_of(table: NgramTable) -> tuple[Any, ...]:
    def kind(array: Array) -> Any:
        return numba.from_dtype(array.dtype)

    arrays = table.arrays
    return (
        kind(arrays.words),
        kind(arrays.first_steps),
        kind(arrays.probs),
        types.float32 if len(arrays.prob_table) else None,
        kind(arrays.backoffs),
        types.float32 if len(arrays.backoff_table) else None,
    )


# Kernels. Those that are made for types only pass them on, so that numba can store what it compiled


def _at_address(typing_context, address, kind):  # type: ignore[no-untyped-def]
    """The pointer to numbers of a type at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind.instance_type)(address, kind), generate


def _address_of(typing_context, buffer):  # type: ignore[no-untyped-def]
    """The address of the first byte of a buffer."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(ADDRESS))

    return ADDRESS(buffer), generate


_pointer: Any = intrinsic(_at_address)
_place: Any = intrinsic(_address_of)


@numba.njit(inline="always")
def _numbers(buffer, kind, size):  # type: ignore[no-untyped-def]
    """The bytes of a buffer as numbers of a type."""
    return carray(_pointer(_place(buffer), kind), size)


def _array(address: int, size: int, kind: Any) -> Any:
    """The array of a type at an address; None without a type."""
    raise TypeError("for kernels only")


@overload(_array, strict=False)
def _array_in_kernels(address: Any, size: Any, kind: Any) -> Any:
    if isinstance(kind, types.NoneType):
        return lambda address, size, kind: None
    return lambda address, size, kind: carray(_pointer(address, kind), size)


@numba.njit
def _walk(about, kinds, tokens_T, state_O, probs_T, matched_T):  # type: ignore[no-untyped-def]
    words, steps, probs, prob_table, backoffs, backoff_table = kinds
    walk_kernel(
        _array(about.words, about.words_size, words),
        carray(_pointer(about.first_words, types.uint32), about.first_words_size),
        carray(_pointer(about.first_groups, types.uint32), about.first_groups_size),
        _array(about.first_steps, about.first_steps_size, steps),
        _array(about.probs, about.probs_size, probs),
        _array(about.prob_table, about.prob_table_size, prob_table),
        _array(about.backoffs, about.backoffs_size, backoffs),
        _array(about.backoff_table, about.backoff_table_size, backoff_table),
        about.stride,
        tokens_T,
        state_O,
        -1,
        about.absent,
        probs_T,
        matched_T,
        matched_T,
    )


@numba.njit
def _shorten(about, kinds, state_O):  # type: ignore[no-untyped-def]
    """Remove the longest contexts from a state if no n-gram continues them: equal states then have equal scores."""
    first_words = carray(_pointer(about.first_words, types.uint32), about.first_words_size)
    groups = carray(_pointer(about.first_groups, types.uint32), about.first_groups_size)
    steps = _array(about.first_steps, about.first_steps_size, kinds[1])
    backoffs = _array(about.backoffs, about.backoffs_size, kinds[4])
    table = carray(_pointer(about.backoff_table, types.float32), about.backoff_table_size)
    for k in range(about.order - 1, 0, -1):
        node = state_O[k]
        if node >= 0:
            last = first_child(first_words, groups, steps, node + 1)
            if first_child(first_words, groups, steps, node) < last or value(backoffs, table, k - 1, node) != 0:
                break
            state_O[k] = -1


@numba.njit(inline="always")
def _room(address, kind, size):  # type: ignore[no-untyped-def]
    """Working memory for numbers of a type."""
    if size <= ROOM:  # noqa: SIM108  the two have one type only as statements
        room = carray(_pointer(address, kind), size)
    else:
        room = np.empty(size, kind)
    return room


@numba.njit
def _sentence(about, kinds, data, first, last, bos, eos, tokens_T, probs_T, matched_T):  # type: ignore[no-untyped-def]
    """Fill in the scores of the words of data[first:last] -> their number, -1 if one of them is `<s>` or `</s>`."""
    room = len(tokens_T)
    starts_N, ends_N = _room(about.starts, types.int64, room), _room(about.ends, types.int64, room)
    size = split_ascii(data, first, last, starts_N, ends_N)
    slots = carray(_pointer(about.slots, types.uint64), about.slots_size)
    text = carray(_pointer(about.text, types.uint8), about.text_size)
    offsets = carray(_pointer(about.offsets, types.int64), about.offsets_size)
    look_up_into(data, starts_N[:size], ends_N[:size], slots, text, offsets, about.missing, tokens_T)
    for t in range(size):
        if tokens_T[t] >= about.size:
            return -1
    if eos:
        tokens_T[size] = about.eos
        size += 1
    state_O = np.full(about.order, -1, np.int64)
    state_O[0] = 0
    if bos and about.order > 1:
        state_O[0], state_O[1] = 1, about.eos
    _walk(about, kinds, tokens_T[:size], state_O, probs_T, matched_T)
    return size


@numba.njit
def _total(about, kinds, data, first, last, bos, eos):  # type: ignore[no-untyped-def]
    room = (last - first) // 2 + 2
    tokens_T = _room(about.tokens, types.int32, room)
    probs_T, matched_T = _room(about.scores, types.float32, room), _room(about.matched, types.uint8, room)
    size = _sentence(about, kinds, data, first, last, bos, eos, tokens_T, probs_T, matched_T)
    total = 0.0 if size >= 0 else np.nan
    for t in range(size):
        total += probs_T[t]
    return total


@cache
def _make_score(kinds: Any) -> Any:
    @numba.njit(types.float64(BYTES, ADDRESS, types.intp, types.intp), cache=True)
    def score(data, about, bos, eos):  # type: ignore[no-untyped-def]
        size = len(data)
        bytes_N = _numbers(data, types.uint8, size)
        return _total(carray(_pointer(about, ABOUT), 1)[0], kinds, bytes_N, 0, size, bos, eos)

    return score


@cache
def _make_full_scores(kinds: Any) -> Any:
    """Returns twice the number of words, plus 1 if one of them is unknown, or -1."""
    out = (WRITABLE, WRITABLE, WRITABLE)

    @numba.njit(types.intp(BYTES, ADDRESS, types.intp, types.intp, *out), cache=True)
    def full_scores(data, about, bos, eos, log_probs, matched, oov):  # type: ignore[no-untyped-def]
        fields, size = carray(_pointer(about, ABOUT), 1)[0], len(data)
        room = size // 2 + 2
        tokens_T = _room(fields.tokens, types.int32, room)
        probs_T, matched_T = _numbers(log_probs, types.float32, room), _numbers(matched, types.uint8, room)
        bytes_N = _numbers(data, types.uint8, size)
        count = _sentence(fields, kinds, bytes_N, 0, size, bos, eos, tokens_T, probs_T, matched_T)
        unknown = 0
        for t in range(count):
            oov[t] = tokens_T[t] == fields.missing
            unknown |= oov[t]
        return 2 * count + unknown if count >= 0 else -1

    return full_scores


@cache
def _make_step(kinds: Any) -> Any:
    @numba.njit(types.float64(ADDRESS, WRITABLE, types.intp, WRITABLE), cache=True)
    def step(about, before, token, after):  # type: ignore[no-untyped-def]
        fields = carray(_pointer(about, ABOUT), 1)[0]
        tokens_T, probs_T = _room(fields.tokens, types.int32, 1), _room(fields.scores, types.float32, 1)
        tokens_T[0] = token
        order = fields.order
        before_O, state_O = _numbers(before, types.int64, order), _numbers(after, types.int64, order)
        for k in range(order):
            state_O[k] = before_O[k]
        matched_T = _room(fields.matched, types.uint8, 1)
        _walk(fields, kinds, tokens_T, state_O, probs_T, matched_T)
        if fields.absent == 0:
            _shorten(fields, kinds, state_O)
        return np.float64(probs_T[0])

    return step
