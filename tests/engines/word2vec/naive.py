"""word2vec by its definition: the same draws in plain integers, gradients by autograd, one prediction at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from chainrule.engines.word2vec.kernels import LookupTables, SweepOptions, Word2VecWeights

BITS = (1 << 64) - 1
ROUND = 0x9E3779B97F4A7C15


def mix(number: int) -> int:
    """splitmix64's hash."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & BITS
    return number ^ (number >> 31)


def stream(seed: int, number: int) -> Iterator[int]:
    """The draws of one of the three streams: kept words, reaches, negative words."""
    state = mix((seed + (number + 1) * ROUND) & BITS)
    while True:
        state = (state + ROUND) & BITS
        yield mix(state)


def choose(drawn: int, aliases_V: Sequence[int]) -> int:
    """A word from an alias table."""
    place = ((drawn >> 32) * len(aliases_V)) >> 32
    entry = int(aliases_V[place])
    return place if drawn & 0xFFFFFFFF < entry >> 32 else entry & 0xFFFFFFFF


class Naive:
    """Learns from the sentences of some tokens by autograd in double precision."""

    def __init__(
        self, tables: LookupTables, weights: Word2VecWeights, options: SweepOptions, rate: float, seed: int
    ) -> None:
        self.tables, self.options, self.rate = tables, options, rate
        self.keeping, self.reaching, self.choosing = (stream(seed, number) for number in range(3))
        self.inputs, self.outputs, self.nodes = (
            torch.tensor(np.array(rows), dtype=torch.float64, requires_grad=True) for rows in weights
        )

    def learn(self, tokens: Sequence[int]) -> None:
        sentence: list[int] = []
        for token in [*tokens, None]:
            word = -2 if token is None else int(self.tables.words_I[token])
            if word == -2:
                self._sentence(sentence)
                sentence = []
            elif word != -1 and next(self.keeping) >> 32 <= int(self.tables.keep_V[word]):
                sentence.append(word)

    def _sentence(self, words: list[int]) -> None:
        window = self.options.window
        for centre, word in enumerate(words):
            reach = window - (((next(self.reaching) >> 32) * window) >> 32) if self.options.shrink else window
            places = range(max(0, centre - reach), min(len(words), centre + reach + 1))
            context = [words[place] for place in places if place != centre]
            groups = [[other] for other in context] if self.options.skip_gram else [context] if context else []
            for group in groups:
                if self.options.hierarchical:
                    self._step(group, lambda hidden_D, word=word: self._tree_loss(hidden_D, word))
                if self.options.negatives:
                    drawn = [choose(next(self.choosing), self.tables.aliases_V) for _ in range(self.options.negatives)]
                    self._step(group, lambda hidden_D, word=word, drawn=drawn: self._loss(hidden_D, word, drawn))

    def _loss(self, hidden_D: Tensor, word: int, drawn: list[int]) -> Tensor:
        negatives = [other for other in drawn if other != word]
        scores_K = self.outputs[negatives] @ hidden_D
        return -logsigmoid(self.outputs[word] @ hidden_D) - logsigmoid(-scores_K).sum()

    def _tree_loss(self, hidden_D: Tensor, word: int) -> Tensor:
        path = slice(int(self.tables.starts_V[word]), int(self.tables.starts_V[word + 1]))
        nodes, left = self.tables.nodes_N[path].tolist(), torch.tensor(self.tables.left_N[path], dtype=torch.float64)
        return -logsigmoid((2 * left - 1) * (self.nodes[nodes] @ hidden_D)).sum()

    def _step(self, group: list[int], loss) -> None:  # type: ignore[no-untyped-def]
        """One gradient step. CBOW moves each vector of a context by the whole gradient of their mean."""
        sums = self.options.skip_gram or not self.options.mean
        hidden_D = self.inputs[group].sum(0) if sums else self.inputs[group].mean(0)
        hidden_D.retain_grad()
        loss(hidden_D).backward()
        with torch.no_grad():
            share = 1 / len(group) if sums else 1.0
            for word in group:
                self.inputs[word] -= self.rate * share * hidden_D.grad
            for rows in (self.outputs, self.nodes):
                if rows.grad is not None:
                    rows -= self.rate * rows.grad
                    rows.grad = None
            self.inputs.grad = None
