"""A Transformer decoder, compiled: its packed weights, and the state of the texts that it continues.

    stack = CompiledStack(weights)                       # once for each model; weights in the form of `StackWeights`
    state = stack.start(2)                               # two empty texts
    log_probs_RV, state = state.log_probs(tokens_RT)     # after the last of T more tokens

One call of a kernel reads any number of tokens of any number of rows (`stack_kernel.py`). The numbers of a row never
depend on the other rows, nor on how its tokens are divided into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np

from chainrule.base.lazy import torch
from chainrule.engines.decode import search_kernel
from chainrule.engines.decode import stack_kernel as kernel
from chainrule.engines.decode.linear import aligned, multiplications, rounded_up
from chainrule.engines.decode.linear_attention import sums_of_layer
from chainrule.engines.decode.past import NO_CACHE, NO_SUMS, Past, Sums
from chainrule.engines.decode.places import Places
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.shares import item_cuts, row_cuts, run_shares
from chainrule.engines.decode.sources import NO_MEMORY, NO_SOURCES, NOTHING, Sources
from chainrule.engines.decode.stack_attention import project_sources
from chainrule.engines.decode.stack_layout import Shape
from chainrule.engines.decode.stack_packing import pack_stack
from chainrule.engines.decode.weights import StackWeights
from chainrule.types import TensorHolder

Array = np.ndarray[Any, Any]
Precision = Literal["float32", "int8"]
Wanted = Literal["last", "all"]

ITEMS_PER_CALL = 4096
"""Tokens that one call of the kernel reads, which bounds its memory; dividing a text changes no number."""


class CompiledStack:
    """The packed weights of a decoder."""

    def __init__(self, weights: StackWeights, precision: Precision = "float32") -> None:
        packed = pack_stack(weights, int8=precision == "int8")
        shape, *rest = packed
        self.width, self.window = weights.embedding_VD.shape[1], weights.window
        self.layers, self.head = len(weights.blocks), rounded_up(weights.head_width)
        self.attention_width, self.keeps_sums = weights.heads * self.head, weights.attention == "linear"
        self.slots = self.layers * sums_of_layer(weights.heads, weights.head_width, self.head)
        self.vocabulary = None if weights.output is None else len(weights.output.weight_XD)
        self.embedding = np.ascontiguousarray(weights.embedding_VD, np.float32).ravel()
        features = shape.copy()
        features[Shape.OUTPUT] = -1
        self.work = multiplications(packed[-1])
        self._numbers: Array | None = None
        self.room = Room()
        self.model, self.feature_model = ((one, *rest) for one in (shape, features))

    def numbers(self, count: int) -> Array:
        """0, 1, …, count - 1: the rows of a state."""
        numbers = self._numbers
        if numbers is None or len(numbers) != count:
            self._numbers = numbers = np.arange(count)
        return numbers

    def start(self, rows: int, sources: Sources | None = None) -> StackState:
        """The state of empty texts, one for each of the sources if there are some."""
        past: Past
        if self.keeps_sums:
            past = Sums.empty(rows, self.slots)
        else:
            past = Places.empty(rows, self.layers, self.attention_width, self.window)
        return StackState(self, past, np.zeros(rows, np.int64), sources or NO_SOURCES)

    def encode(self, token_N: Array, count_B: Array, position_N: Array | None = None) -> Array:
        """The features of the tokens of B texts, one after another, of which each is read as a whole, ND.

        Their positions are 0, 1, 2, … in each text, unless they are given.
        """
        N, starts_B = len(token_N), count_B.cumsum() - count_B
        row_N, order_N = np.arange(len(count_B)).repeat(count_B), np.arange(N, dtype=np.int32)
        if position_N is None:
            position_N = np.arange(N) - starts_B.repeat(count_B)
        features_ND, every_N = np.empty((N, self.width), np.float32), np.arange(N)
        past = (NO_CACHE[0], 0, 0, order_N, NO_CACHE[4], 0), NO_SUMS

        def read(begin: int, end: int) -> None:
            own, items = slice(begin, end), end - begin
            space = self.room.arrays(kernel.make_room, self.feature_model, items, items, int(count_B.max(initial=1)))
            tokens = row_N[own], position_N[own], token_N[own]
            found = features_ND[own]
            kernel.read_tokens(
                self.feature_model, past, NO_MEMORY, self.embedding, tokens, every_N[:items], found, space
            )

        run_shares(read, item_cuts(row_N, self.work))
        return features_ND

    def sources(self, encoded_ND: Array, count_A: Array, place_N: Array = NOTHING) -> Sources:
        """Encoded sources: the features of all positions, one source after another.

        `place_N` says where in its source each of them is, for attention that depends on it.
        """
        (N, D), encoded = encoded_ND.shape, np.ascontiguousarray(encoded_ND).reshape(-1)
        numbers = aligned(self.layers * N * 2 * self.attention_width)

        def project(begin: int, end: int) -> None:
            bytes_ = aligned((end - begin) * (D + 4), np.uint8), aligned(end - begin)
            project_sources(self.model, encoded, D, begin, end, numbers, N, bytes_)

        run_shares(project, row_cuts(N, self.layers * 2 * self.attention_width * D))
        shaped, longest = numbers.reshape(self.layers, N, -1), int(count_A.max(initial=0))
        return Sources(shaped, count_A.cumsum() - count_A, count_A, longest, place_N)


class StackState(TensorHolder):
    """The texts that a stack has read: R rows, which may have different lengths."""

    __slots__ = ("length_R", "longest", "past", "sources", "stack")

    def __init__(
        self, stack: CompiledStack, past: Past, length_R: Array, sources: Sources, longest: int | None = None
    ) -> None:
        """`longest` is the largest of the lengths."""
        self.stack, self.past, self.length_R, self.sources = stack, past, length_R, sources
        self.longest = int(length_R.max(initial=0)) if longest is None else longest

    @property
    def predicts(self) -> bool:
        """Whether the engine knows the output layer."""
        return self.stack.vocabulary is not None

    @property
    def independent(self) -> bool:
        """Rows are independent up to the last layer that the engine knows."""
        return self.predicts

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been read, neither a text nor a source."""
        return self.longest == 0 and self.sources is NO_SOURCES

    # Reading

    def log_probs(self, tokens_RT: Array, wanted: Wanted = "last") -> tuple[Array, StackState]:
        """Append T tokens to each row -> log p of the next token after the last, RV, or after each, (R·T)V."""
        assert self.stack.vocabulary is not None
        return self._read(tokens_RT, wanted, self.stack.model, self.stack.vocabulary)

    def features(self, tokens_RT: Array) -> tuple[Array, StackState]:
        """Append T tokens to each row -> the features after each, (R·T)D."""
        return self._read(tokens_RT, "all", self.stack.feature_model, self.stack.width)

    def _read(self, tokens_RT: Array, wanted: Wanted, model: Any, width: int) -> tuple[Array, StackState]:
        R, T = tokens_RT.shape
        longest = self.longest + T
        if longest > self.stack.window:
            return self._slide(tokens_RT, wanted, model, width)
        if R * T > ITEMS_PER_CALL and T > 1:
            return self._read_in_parts(tokens_RT, wanted, model, width)
        if T == 1:
            row_R = self.stack.numbers(R)
            results = np.empty((R, width), np.float32)
            length_R = self.length_R + 1
            return results, self._run(
                model, row_R, self.length_R, tokens_RT.reshape(-1), length_R, longest, row_R, results
            )
        wanted_M = np.arange(R * T) if wanted == "all" else np.arange(T - 1, R * T, T)
        results = np.empty((len(wanted_M), width), np.float32)
        count_R = np.full(R, T)
        return results, self._append(self.stack.numbers(R), count_R, tokens_RT.ravel(), model, wanted_M, results)

    def _read_in_parts(self, tokens_RT: Array, wanted: Wanted, model: Any, width: int) -> tuple[Array, StackState]:
        R, T = tokens_RT.shape
        state, parts, step = self, [], max(1, ITEMS_PER_CALL // R)
        for at in range(0, T, step):
            found, state = state._read(tokens_RT[:, at : at + step], wanted, model, width)
            parts.append(found.reshape(R, -1, width))
        return parts[-1][:, -1] if wanted == "last" else np.concatenate(parts, 1).reshape(R * T, width), state

    def _append(
        self, row_K: Array, count_K: Array, token_N: Array, model: Any, wanted_M: Array, results: Array
    ) -> StackState:
        """Read `count_K` tokens of each of some rows, which must fit into the window -> the state after them."""
        starts_K = count_K.cumsum() - count_K
        position_N = np.arange(len(token_N)) - (starts_K - self.length_R[row_K]).repeat(count_K)
        length_R = self.length_R.copy()
        length_R[row_K] += count_K
        longest = int(length_R.max())
        return self._run(model, row_K.repeat(count_K), position_N, token_N, length_R, longest, wanted_M, results)

    def _run(
        self,
        model: Any,
        row_N: Array,
        position_N: Array,
        token_N: Array,
        length_R: Array,
        longest: int,
        wanted_M: Array,
        results: Array,
    ) -> StackState:
        """Read tokens at positions of rows, which then have the lengths `length_R`."""
        past, part = self.past.extend(len(row_N), self.length_R, length_R, longest)

        def read(begin: int, end: int) -> None:
            items, wanted, own = (row_N, position_N, token_N), wanted_M, results
            if end - begin < len(row_N):
                one, other = np.searchsorted(wanted_M, (begin, end))
                items = row_N[begin:end], position_N[begin:end], token_N[begin:end]
                wanted, own = wanted_M[one:other] - begin, results[one:other]
            memory, space = self._arguments(model, past, end - begin, len(wanted))
            kernel.read_tokens(model, part(begin), memory, self.stack.embedding, items, wanted, own, space)

        run_shares(read, item_cuts(row_N, self.stack.work))
        return StackState(self.stack, past, length_R, self.sources, longest)

    def _arguments(self, model: Any, past: Past, items: int, results: int) -> tuple[Any, Any]:
        """What the kernel takes: the sources, and room for its work."""
        memory = NO_MEMORY if self.sources is NO_SOURCES else self.sources.arrays()
        return memory, self.stack.room.arrays(
            kernel.make_room, model, items, results, past.positions + self.sources.longest
        )

    def continue_greedily(self, token: int, count: int, eos: int) -> tuple[Array, StackState]:
        """Read a token of the one row, then choose the most probable next ones, at most `count` -> all but the first.

        The result ends with `eos` or where the window is full; the state has not read the last token.
        """
        stack = self.stack
        assert len(self.length_R) == 1
        assert stack.vocabulary is not None
        assert self.longest < stack.window
        chosen = np.empty(min(count, stack.window - self.longest), np.int64)
        length_R, row_1 = self.length_R + len(chosen), stack.numbers(1)
        past, part = self.past.extend(len(chosen), self.length_R, length_R, self.longest + len(chosen))
        results = np.empty((1, stack.vocabulary), np.float32)
        memory, space = self._arguments(stack.model, past, 1, 1)
        items = row_1, self.length_R.copy(), np.array([token])
        read = search_kernel.continue_greedily(
            stack.model, part(0), memory, stack.embedding, items, eos, chosen, results, space
        )
        if read < len(chosen):
            length_R = self.length_R + read
            past.withdraw(len(chosen) - read, length_R)
        return chosen[:read], StackState(stack, past, length_R, self.sources)

    def best_continuations(self, token_R: Array, log_prob_AW: Array, count: int) -> tuple[Array, Array, StackState]:
        """Append a token to each row -> the best continuations of the rows of each prompt, W in succession.

        Returns their log-probabilities AM, best first, cells row · V + token AM, and the state.
        """
        stack, R = self.stack, len(token_R)
        assert stack.vocabulary is not None
        count = min(count, log_prob_AW.shape[1] * stack.vocabulary)
        best_AM, cell_AM = (np.empty((len(log_prob_AW), count), kind) for kind in (np.float32, np.int64))
        W, row_R, length_R = log_prob_AW.shape[1], stack.numbers(R), self.length_R + 1
        past, place = self.past.extend(R, self.length_R, length_R, self.longest + 1)
        log_prob_AW = np.ascontiguousarray(log_prob_AW)

        def choose(begin: int, end: int) -> None:
            part, own = slice(begin, end), slice(begin * W, end * W)
            size = (end - begin) * W
            memory, space = self._arguments(stack.model, past, size, size)
            items = row_R[own], self.length_R[own], token_R[own]
            beam = row_R[:size], log_prob_AW[part], best_AM[part], cell_AM[part]
            search_kernel.read_and_choose(
                stack.model, place(own.start), memory, stack.embedding, items, stack.vocabulary, beam, space
            )
            cell_AM[part] += own.start * stack.vocabulary

        run_shares(choose, row_cuts(len(log_prob_AW), W * stack.work))
        return best_AM, cell_AM, StackState(stack, past, length_R, self.sources, self.longest + 1)

    def _slide(self, tokens_RT: Array, wanted: Wanted, model: Any, width: int) -> tuple[Array, StackState]:
        """Read more tokens than fit: where a window is full, a new one starts with its newer half."""
        R, T = tokens_RT.shape
        window = self.stack.window
        results = np.empty((R, T, width), np.float32)
        state, read_R = self, np.zeros(R, np.int64)
        while (read_R < T).any():
            fresh_R = (read_R < T) & (state.length_R == window)
            kept = window // 2
            if fresh_R.any():
                state = state._restart(fresh_R, kept)
            row_K = np.flatnonzero(read_R < T)
            count_K = np.minimum(window - state.length_R[row_K], T - read_R[row_K])
            columns = [np.arange(read, read + count) for read, count in zip(read_R[row_K], count_K, strict=True)]
            token_N = np.concatenate([tokens_RT[row, column] for row, column in zip(row_K, columns, strict=True)])
            part = np.empty((len(token_N), width), np.float32)
            state = state._append(row_K, count_K, token_N, model, np.arange(len(token_N)), part)
            results[row_K.repeat(count_K), np.concatenate(columns)] = part
            read_R[row_K] += count_K
        return results[:, -1] if wanted == "last" else results.reshape(R * T, width), state

    def _restart(self, fresh_R: Array, kept: int) -> StackState:
        """The state in which some rows, whose windows are full, have read only the last `kept` of their tokens."""
        row_K = np.flatnonzero(fresh_R)
        token_N = self.past.kept_tokens[row_K, self.stack.window - kept : self.stack.window].ravel()
        length_R = np.where(fresh_R, 0, self.length_R)
        past = self.past.select(np.arange(len(length_R)), length_R)
        state = StackState(self.stack, past, length_R, self.sources)
        if not kept:
            return state
        none = np.empty((0, self.stack.width), np.float32)
        return state._append(row_K, np.full(len(row_K), kept), token_N, self.stack.feature_model, NOTHING, none)

    # Changing

    @property
    def room(self) -> int:
        """Tokens that fit into the window of every row."""
        return self.stack.window - self.longest

    @property
    def rewinds(self) -> bool:
        """Whether the last tokens can be removed."""
        return self.past.rewinds

    def tokens(self) -> Array | None:
        """The tokens in the window of each row, RL; None: it has no window. The rows must have equal lengths."""
        if not self.rewinds:
            return None
        assert (self.length_R == self.longest).all()
        return self.past.kept_tokens[:, : self.longest].copy()

    def remove_last(self, count: int) -> StackState:
        """The state without the last `count` tokens of each row."""
        assert self.rewinds
        return StackState(self.stack, self.past, self.length_R - count, self.sources)

    def select(self, rows_K: Array) -> StackState:
        """Row k of the result is row rows_K[k] of this state."""
        length_K = self.length_R[rows_K]
        sources = self.sources if self.sources is NO_SOURCES else self.sources.select(rows_K)
        return StackState(self.stack, self.past.select(rows_K, length_K), length_K, sources)

    def map_tensors(self, change: Callable[[Any], Any]) -> StackState:
        return self.select(change(torch.arange(len(self.length_R))).numpy())

    def form(self) -> Hashable:
        """Texts of one stack can be joined, whatever their lengths."""
        return "stack", id(self.stack)

    def join(self, others: Sequence[StackState]) -> StackState:
        lengths = [one.length_R for one in (self, *others)]
        past, sources = self.past.join([one.past for one in others], lengths), self.sources
        if sources is not NO_SOURCES:
            sources = sources.join([one.sources for one in others])
        return StackState(self.stack, past, np.concatenate(lengths), sources)
