"""Runs of word2vec.

run = cr.load("runs/vectors")
run.vector("king")                    # its vector
run.words[0], run.vectors_VD[0]       # the most frequent word and its vector
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import DataError
from chainrule.evaluation.measurement import Measurement
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

    def has(self, word: str) -> bool:
        """Whether a word has a vector."""
        return word in self._rows

    def vector(self, word: str) -> Array:
        """The vector of a word, D."""
        if not self.has(word):
            raise DataError(
                f"'{word}' has no vector in {self.folder.path}; it occurs less than {self.model.config.min_count} "
                "times in the text"
            )
        return np.array(self.vectors_VD[self._rows[word]])

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    def validation(self) -> VectorSummary:
        return VectorSummary(self.result.get("loss"), len(self.words), self.vectors_VD.shape[1])
