"""Runs of word2vec.

run = cr.load("runs/vectors")
run["king"], "king" in run, len(run)  # a vector, whether there is one, the number of words
run.words[0], run.vectors_VD[0]       # the most frequent word and its vector
run.most_similar(positive=["king", "woman"], negative=["man"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from chainrule.base.arrays import Array
from chainrule.base.results import Results
from chainrule.evaluation.measurement import Measurement
from chainrule.inference.word_table import Neighbour, Query
from chainrule.registry import RUNS
from chainrule.runs.base import Run


@dataclass(frozen=True)
class VectorSummary(Measurement):
    """The result of training word vectors."""

    loss: float | None  # nats per prediction, over the end of the training; None if nothing was learned
    words: int
    vector_size: int
    protocol: str = (
        "the loss is in nats per prediction over the last second of training; measure the vectors with "
        "eval --similarity and --analogies."
    )


@RUNS.register("vectors")
class VectorRun(Run):
    """Words and their vectors, with their folder."""

    verbs = ("eval", *Run.verbs)

    @cached_property
    def words(self) -> list[str]:
        """All words, in the order of the tokeniser's ids."""
        return [self.tokenizer.piece(token) for token in self.model.ids_V.tolist()]

    @property
    def vectors_VD(self) -> Array:  # noqa: N802
        """Their vectors, mapped from the file, float32."""
        vectors_VD: Array = self.model.vectors_VD
        return vectors_VD

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.word_table

    def __getitem__(self, words: str | Iterable[str]) -> Array:
        """The vector of a word, D, or the vectors of several, ND."""
        return self.word_table[words]

    def has(self, word: str) -> bool:
        """Whether a word has a vector.

        Args:
            word: A word.
        """
        return word in self

    def vector(self, word: str) -> Array:
        """The vector of a word, D.

        Args:
            word: A word with a vector.
        """
        return self.word_table.vector(word)

    def most_similar(
        self, positive: Query | Sequence[Query] = (), negative: Query | Sequence[Query] = (), topn: int = 10
    ) -> Results[Neighbour]:
        """The words nearest to the sum of the positive minus the negative vectors; those of words have length one.

        Args:
            positive: A word or vector, or several, that are added.
            negative: A word or vector, or several, that are subtracted.
            topn: Number of words.

        Returns:
            Words and cosines, the largest cosine first, without the given words.
        """
        return self.word_table.most_similar(positive, negative, topn)

    def similarity(self, first: Query, second: Query) -> float:
        """The cosine of two vectors.

        Args:
            first: A word or vector.
            second: Another.
        """
        return self.word_table.similarity(first, second)

    def doesnt_match(self, words: Iterable[str]) -> str:
        """The word that is least like the others.

        Args:
            words: Several words, or one string that is split at white space.
        """
        return self.word_table.doesnt_match(words)

    def validation(self) -> VectorSummary:
        return VectorSummary(self.result.get("loss"), len(self.words), self.vectors_VD.shape[1])
