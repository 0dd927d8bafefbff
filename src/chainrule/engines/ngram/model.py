"""An n-gram table as a language model over numpy arrays: the contract of `types.ArrayModel`, without torch.

`models/ngram.py` has the same methods over tensors. A state is one row of O numbers per prefix, BO; `query.py`
describes them.
"""

from __future__ import annotations

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram import query
from chainrule.engines.ngram.table import NgramTable


class NgramArrays:
    """Steps through and scores tokens with a table."""

    def __init__(self, table: NgramTable) -> None:
        self.table = table
        self.eos, self.vocab_size = table.eos, table.vocab_size
        self._line_end = -1 if table.across_lines else table.eos  # the token that ends a context; -1: none

    # Stepping

    def start(self, batch: int) -> Array:
        """The empty prefix -> BO."""
        return np.full((batch, self.table.order), -1, np.int64)

    def step_probs(self, state: Array, token_B: Array) -> tuple[Array, Array]:
        """Append a token to each prefix -> p(. | prefix) BV in double precision, and the new state."""
        from chainrule.base.reproducible import kernels  # numba takes a while to import

        log_probs_BV, state = self.prefill(state, token_B[:, None])
        probs_BV = np.empty_like(log_probs_BV)
        kernels.apply(kernels.EXP, log_probs_BV.reshape(-1), probs_BV.reshape(-1))  # the same bits on every CPU
        return probs_BV.astype(np.float64), state

    def step(self, state: Array, token_B: Array) -> tuple[Array, Array]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Array, tokens_BT: Array) -> tuple[Array, Array]:
        """Append T tokens to each prefix -> log p(. | prefix) after the last, BV, and the new state."""
        states_BO = state.copy()
        log_probs_BV = np.empty((len(states_BO), self.vocab_size), np.float32)
        for row, state_O in enumerate(states_BO):
            self._append(state_O, tokens_BT[row])
            query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_BV[row])
        return log_probs_BV, states_BO

    def extend(self, state: Array, tokens_BT: Array) -> tuple[Array, Array]:
        """Append T tokens to each prefix -> log p(. | prefix) after each of them, BTV, and the new state."""
        states_BO = state.copy()
        log_probs_BTV = np.empty((*tokens_BT.shape, self.vocab_size), np.float32)
        for row, state_O in enumerate(states_BO):
            for t in range(tokens_BT.shape[1]):
                self._append(state_O, tokens_BT[row, t : t + 1])
                query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_BTV[row, t])
        return log_probs_BTV, states_BO

    def follow(self, state: Array, tokens_BT: Array) -> Array:
        """Append T tokens to each prefix -> log p of all but the first, given those before, B(T-1)."""
        states_BO = state.copy()
        for row, state_O in enumerate(states_BO):
            self._append(state_O, tokens_BT[row, :1])
        return self.score(tokens_BT[:, 1:], states_BO)[0]

    def propose(self, state: Array, tokens_1T: Array, count: int, threshold: float) -> tuple[list[int], Array]:
        """Append tokens to one prefix -> its most probable continuation, and the new state."""
        states_1O, log_probs_V = state.copy(), np.empty(self.vocab_size, np.float32)
        self._append(states_1O[0], tokens_1T[0])
        state_O, draft = states_1O[0].copy(), []
        for left in range(count - 1, -1, -1):
            query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_V)
            best = int(log_probs_V.argmax())
            threshold -= float(log_probs_V[best])
            if threshold > 0:
                break
            draft.append(best)
            if left:
                self._append(state_O, np.array([best]))
        return draft, states_1O

    def select(self, state: Array, rows_K: Array) -> Array:
        """Row k of the result is row rows_K[k] of the state."""
        return state[rows_K]

    def _append(self, state_O: Array, tokens_T: Array) -> None:
        """Append T ≥ 1 tokens to a prefix, in place."""
        if state_O[0] < 0:
            query.begin(state_O, tokens_T[0])
            tokens_T = tokens_T[1:]
        query.walk(self.table.arrays, tokens_T, state_O, self._line_end, 0.0)

    # Scoring

    def log_probs(self, tokens_BT: Array) -> Array:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(len(tokens_BT)))[0]

    def score(self, tokens_BT: Array, state: Array) -> tuple[Array, Array]:
        """log p of each token given all before it -> BT, and the state after them."""
        log_probs_BT, _, state = self.full_score(tokens_BT, state)
        return log_probs_BT, state

    def full_score(self, tokens_BT: Array, state: Array) -> tuple[Array, Array, Array]:
        """log p of each token BT, the number of its context words BT, and the state after the tokens."""
        states_BO, tokens = state.copy(), np.ascontiguousarray(tokens_BT, np.int64)
        log_probs_BT, depths_BT = np.empty(tokens.shape, np.float32), np.empty(tokens.shape, np.int64)
        for row, state_O in enumerate(states_BO):
            if state_O[0] < 0:
                query.begin(state_O, self.eos)
            log10_T, depths_BT[row] = query.walk(
                self.table.arrays, tokens[row], state_O, self._line_end, self.table.absent
            )
            np.multiply(log10_T, query.LN10, out=log_probs_BT[row])
        return log_probs_BT, depths_BT, states_BO

    def matched_orders(self, tokens_BT: Array, state: Array | None = None) -> Array:
        """Number of words of the n-gram whose probability each token has after a state, the token included -> BT."""
        orders_BT = np.empty(tokens_BT.shape, np.int64)
        for row, state_O in enumerate(self.start(len(tokens_BT)) if state is None else np.array(state, np.int64)):
            if state_O[0] < 0:
                query.begin(state_O, self.eos)
            tokens_T = np.ascontiguousarray(tokens_BT[row], np.int64)
            walked = query.walk_matches(self.table.arrays, tokens_T, state_O, self._line_end, self.table.absent)
            orders_BT[row] = walked[2]
        return orders_BT

    def score_lines(self, tokens_N: Array) -> tuple[Array, Array]:
        """log p in nats and number of tokens of each of M lines, scored separately; the last line may lack its eos."""
        if not len(tokens_N):
            return np.empty(0), np.empty(0, np.int64)
        log10_N, _ = self.walk_lines(tokens_N)
        ends = np.flatnonzero(tokens_N == self.eos) + 1
        starts_M = np.concatenate([[0], ends[:-1] if len(ends) and ends[-1] == len(tokens_N) else ends])
        log_probs_M = np.add.reduceat(log10_N, starts_M, dtype=np.float64) * query.LN10
        return log_probs_M, np.diff(starts_M, append=len(tokens_N))

    def score_tokens(self, tokens_N: Array) -> Array:
        """log p in nats of each token of lines that are scored separately, N in double precision."""
        return np.multiply(self.walk_lines(tokens_N)[0], query.LN10, dtype=np.float32).astype(np.float64)

    def walk_lines(self, tokens_N: Array) -> tuple[Array, Array]:
        """log10 p and number of context words of each token of lines that are scored separately, N each."""
        return query.walk_lines(self.table.arrays, tokens_N, self.eos, self.table.absent)
