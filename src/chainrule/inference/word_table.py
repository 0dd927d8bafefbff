"""Words and their vectors: the table of word2vec, or the embedding of any other model, with the lookups of gensim."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.results import Results
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.evaluation.vectors import nearest, unit_vectors, vector_norms
from chainrule.inference.subject import TextModel
from chainrule.inference.vector_map import VectorMap, map_vectors

Query = str | Array
"""A word, or a vector."""


class UnknownWordError(DataError, KeyError):
    """A word has no vector."""

    def __str__(self) -> str:
        return str(self.args[0])  # that of KeyError is quoted


class Neighbour(NamedTuple):
    """A word and the cosine of its vector with the query."""

    word: str
    cosine: float


@dataclass
class WordTable:
    """Words and their vectors, the most frequent words first where that is known.

    `table["king"]` is a vector, `table[["king", "queen"]]` an array of two, `"king" in table` tells whether a word has
    one, and iterating gives the words.
    """

    words: Sequence[str]
    vectors_VD: Array  # float32; may be mapped

    @cached_property
    def places(self) -> dict[str, int]:
        """Row of each word; the first row of a repeated word."""
        return {self.words[place]: place for place in range(len(self.words) - 1, -1, -1)}

    @cached_property
    def norms(self) -> Array:
        """The length of each vector, V."""
        return vector_norms(self.vectors_VD)

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.places

    def __getitem__(self, words: str | Iterable[str]) -> Array:
        if isinstance(words, str):
            return self.vector(words)
        vectors_ND: Array = np.asarray(self.vectors_VD[[self.place(word) for word in words]], np.float32)
        return vectors_ND

    def place(self, word: str) -> int:
        """The row of a word; the error for an unknown word suggests the nearest known one."""
        if (place := self.places.get(word)) is not None:
            return place
        close = difflib.get_close_matches(word, self.words, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else f"it has vectors of {len(self.words):,} other words."
        raise UnknownWordError(f"the run has no vector of the word '{word}'; {hint}")

    def vector(self, word: str) -> Array:
        """The vector of a word, D."""
        vector_D: Array = np.asarray(self.vectors_VD[self.place(word)], np.float32)
        return vector_D

    def neighbours(self, word: str, top: int = 10) -> Results[Neighbour]:
        """The words whose vectors have the largest cosine with that of a word, without the word itself."""
        return self.most_similar(word, topn=top)

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> Results[Neighbour]:
        """The words nearest to a - b + c (king - man + woman) of normalised vectors, without the three."""
        return self.most_similar([a, c], [b], topn=top)

    def most_similar(
        self, positive: Query | Sequence[Query] = (), negative: Query | Sequence[Query] = (), topn: int = 10
    ) -> Results[Neighbour]:
        """The words nearest to the sum of the positive minus the negative, without the given words.

        Words count as their unit vectors, vectors as they are.
        """
        if topn < 1:
            raise ConfigError(f"top is {topn}, but at least 1 is needed")
        added, removed = _queries(positive), _queries(negative)
        if not added and not removed:
            raise ConfigError("most_similar needs at least one word or vector; give positive, negative, or both")
        units = [self._summand(one) for one in added] + [-self._summand(one) for one in removed]
        without = [self.place(one) for one in (*added, *removed) if isinstance(one, str)]
        query_D = np.sum(units, axis=0)
        places_1K, cosines_1K = nearest(self.vectors_VD, self.norms, query_D[None], topn + len(without))
        found = zip(places_1K[0].tolist(), cosines_1K[0].tolist(), strict=True)
        return Results([Neighbour(self.words[place], cosine) for place, cosine in found if place not in without][:topn])

    def map(self, words: Iterable[str] | None = None, count: int = 200) -> VectorMap:
        """The principal components of some words; None: the first `count` words."""
        chosen = list(self.words[:count]) if words is None else list(dict.fromkeys(words))
        return map_vectors(chosen, self[chosen] if chosen else self.vectors_VD[:0])

    def similarity(self, first: Query, second: Query) -> float:
        """The cosine of the vectors of two words."""
        return float(self._unit(first) @ self._unit(second))

    def doesnt_match(self, words: Iterable[str]) -> str:
        """The word whose vector has the smallest cosine with the mean of all."""
        given = words.split() if isinstance(words, str) else list(words)
        if not given:
            raise ConfigError("doesnt_match needs at least one word; give some")
        units_ND = unit_vectors(self[given])
        return given[int(np.argmin(units_ND @ units_ND.mean(0)))]

    def _summand(self, query: Query) -> Array:
        """A word as its unit vector, a vector as it is, as in gensim."""
        return self._unit(query) if isinstance(query, str) else np.asarray(query, np.float32)

    def _unit(self, query: Query) -> Array:
        return unit_vectors(self.vector(query) if isinstance(query, str) else np.asarray(query, np.float32))


def _queries(given: Query | Sequence[Query]) -> list[Query]:
    """One word or vector, or several, as a list."""
    if isinstance(given, str) or (isinstance(given, np.ndarray) and given.ndim == 1):
        return [given]
    return list(given)


def table_of(subject: TextModel) -> WordTable:
    """The vectors of a model's words: its result, or its embedding without the tokens that are not text."""
    model, tokenizer = subject.model, subject.tokenizer
    if (learned := model.word_vectors) is not None:
        return WordTable([tokenizer.piece(token) for token in learned.ids_V.tolist()], learned.vectors_VD)
    if model.word_table is None:
        raise RunError(f"{subject.name} has no word vectors; use a run of word2vec, or of a model with an embedding")
    kept = [token for token in range(tokenizer.vocab_size) if token not in (tokenizer.eos, tokenizer.unk)]
    vectors_VD = model.word_table.weight.detach().float().cpu().numpy()
    return WordTable([tokenizer.piece(token) for token in kept], vectors_VD[kept])
