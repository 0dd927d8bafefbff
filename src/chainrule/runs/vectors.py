"""A run of word2vec: what `load` gives for it.

run = cr.load("runs/vectors")
run.vector("king")                    # its vector
run.words[0], run.vectors_VD[0]       # the most frequent word and its vector
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from chainrule.checkpoint.folder import load_model
from chainrule.errors import ConfigError, DataError
from chainrule.models.word2vec import Word2Vec
from chainrule.runs.language_model import Run

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class VectorSummary:
    """What a training of vectors came to."""

    loss: float | None  # nats a prediction, over the last of the text; None if nothing was learned from it
    words: int
    vector_size: int
    protocol: str = (
        "the loss is of the last second of training, in nats a prediction; how good the vectors are is told by "
        "eval --similarity and --analogies."
    )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class VectorRun(Run):
    """Words and their vectors, with their folder. Legend: V words, D width."""

    @cached_property
    def model(self) -> Word2Vec:
        model = load_model(self.folder, self.tokenizer)
        assert isinstance(model, Word2Vec)
        return model

    @cached_property
    def words(self) -> list[str]:
        """All words, the order of the tokeniser's ids kept."""
        return [self.tokenizer.piece(token) for token in self.model.ids_V.tolist()]

    @property
    def vectors_VD(self) -> Array:  # noqa: N802
        """Their vectors, mapped from the file, float32."""
        return self.model.vectors_VD

    def has(self, word: str) -> bool:
        """Whether a word has a vector."""
        return word in self._places

    def vector(self, word: str) -> Array:
        """The vector of a word, D."""
        if not self.has(word):
            raise DataError(
                f"'{word}' has no vector in {self.folder.path}; it came fewer than {self.model.config.min_count} times "
                "in the text, or never"
            )
        return np.array(self.vectors_VD[self._places[word]])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def validation(self) -> VectorSummary:  # type: ignore[override]
        return VectorSummary(self.result.get("loss"), len(self.words), self.vectors_VD.shape[1])

    # What vectors of words do not do

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"{self.folder.path} has vectors of words and gives no probabilities of text; use chainrule embed, "
            "chainrule neighbours, or chainrule eval with --similarity or --analogies"
        )

    generate = stream = score = score_text = evaluate = evaluate_held_out = _refuse
    compress = decompress = generation_speed = adjust = _refuse
