"""Scoring a text as it grows: a prefix that is fed pieces and gives log p of each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.inference.subject import TextModel
from chainrule.types import State


class TokenScore(NamedTuple):
    """A token of a text, its log-probability in nats given all before it, and whether it is an unknown word.

    `order` is the length of the n-gram that the model found, the token included; None: the model has no n-grams.
    """

    piece: str
    log_prob: float
    oov: bool
    order: int | None = None


class Prefix:
    """A text that was read so far. Feeding changes it; a copy continues independently."""

    def __init__(self, subject: TextModel, state: State = None, log_prob: float = 0.0, tokens: int = 0) -> None:
        self._subject, self._arrays = subject, over_arrays(subject.model)
        self._state = self._arrays.start(1) if state is None else state
        self.log_prob, self.tokens = log_prob, tokens

    def feed(self, text: str | Sequence[str]) -> list[TokenScore]:
        """Append a text, or words separated by spaces -> the score of each of its tokens; a newline is `<eos>`."""
        whole = text if isinstance(text, str) else " ".join(text)
        return self._read(self._subject.tokenizer.encode_block(whole))

    def end(self) -> TokenScore:
        """Append the end of the line -> its score."""
        return self._read(np.array([self._subject.tokenizer.eos]))[0]

    def copy(self) -> Prefix:
        """The same prefix, to be continued differently."""
        with evaluating(self._subject.model):
            state = self._arrays.select(self._state, np.zeros(1, np.int64))
        return Prefix(self._subject, state, self.log_prob, self.tokens)

    def _read(self, ids_N: Array) -> list[TokenScore]:
        if not len(ids_N):
            return []
        tokenizer = self._subject.tokenizer
        tokens_1N = np.asarray(ids_N, np.int64)[None]
        with evaluating(self._subject.model):
            orders_1N = self._arrays.matched_orders(tokens_1N, self._state)
            log_probs_1N, self._state = self._arrays.score(tokens_1N, self._state)
        log_probs = log_probs_1N[0].astype(np.float64).tolist()
        self.log_prob += sum(log_probs)
        self.tokens += len(log_probs)
        orders = [None] * len(log_probs) if orders_1N is None else orders_1N[0].tolist()
        return [
            TokenScore(tokenizer.piece(token), log_prob, token == tokenizer.unk, order)
            for token, log_prob, order in zip(ids_N.tolist(), log_probs, orders, strict=True)
        ]
