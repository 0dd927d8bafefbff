"""word2vec (Mikolov et al. 2013): a vector for each word, learned by telling words that stand together from others.

How it is learned stands in `engines/word2vec/kernels.py`. The options have the names that they have in gensim, and its meaning.
Legend: V words, D width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.base.arrays import open_arrays, write_arrays
from chainrule.config import Section
from chainrule.engines.word2vec.kernels import SweepOptions, Word2VecWeights
from chainrule.engines.word2vec.sweeps import SweepPlan
from chainrule.errors import ConfigError, RunError
from chainrule.layers.encoders.bag import BagShape
from chainrule.registry import MODELS
from chainrule.types import Model, WordVectors

Array = np.ndarray[Any, Any]
ARRAYS = ("vectors", "outputs", "nodes", "counts", "ids")


class Word2VecConfig(Section):
    """What is learned, and how."""

    sg: Literal[0, 1] = Field(0, description="1: skip-gram, 0: CBOW")
    vector_size: int = Field(100, ge=1, description="numbers of a vector")
    window: int = Field(5, ge=1, description="at most so many words on either side are the context of a word")
    hs: Literal[0, 1] = Field(0, description="1: hierarchical softmax, on a Huffman tree of the words")
    negative: int = Field(5, ge=0, description="negative words drawn for each prediction; 0: no negative sampling")
    ns_exponent: float = Field(0.75, description="a word is drawn in proportion to its count to this power")
    cbow_mean: Literal[0, 1] = Field(1, description="CBOW: 1 averages the vectors of the context, 0 sums them")
    sample: float = Field(
        1e-3, ge=0, lt=1, description="words of a larger share of the text are left out at random; 0: none"
    )
    alpha: float = Field(0.025, gt=0, description="learning rate at the start")
    min_alpha: float = Field(0.0001, ge=0, description="learning rate at the end")
    shrink_windows: bool = Field(True, description="each word draws how far its context reaches, from 1 to `window`")
    min_count: int = Field(5, ge=1, description="rarer words are left out")
    epochs: int = Field(5, ge=1, description="passes over the text, unless `training.epochs` says otherwise")
    workers: int | None = Field(
        None,
        ge=1,
        description="threads; by default `training.threads`, else one a core; 1: the same vectors every time",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.hs and not self.negative:
            raise ConfigError(
                "model.hs and model.negative are both 0, so there is nothing to learn by; set model.negative=5, or "
                "model.hs=1"
            )
        if self.min_alpha > self.alpha:
            raise ConfigError(
                f"model.min_alpha is {self.min_alpha:g}, above model.alpha = {self.alpha:g}; the learning rate falls "
                "from alpha to min_alpha"
            )
        return self

    def plan(self, seed: int) -> SweepPlan:
        """The same for the loops."""
        options = SweepOptions(
            skip_gram=bool(self.sg),
            hierarchical=bool(self.hs),
            negatives=self.negative,
            window=self.window,
            shrink=self.shrink_windows,
            mean=bool(self.cbow_mean),
        )
        return SweepPlan(options, self.sample, self.ns_exponent, seed)


@MODELS.register("word2vec", family="word2vec", task="vectors", fitting="sweeps")
class Word2Vec(nn.Module, Model):
    """Vectors of words, and what they were learned with.

    Rows may be longer than a vector, filled up with zeros as training wants them; they are kept and saved as they are,
    so that no second copy of them is ever made.
    """

    Config: ClassVar[type[Word2VecConfig]] = Word2VecConfig
    stores_arrays = True

    def __init__(
        self,
        config: Word2VecConfig,
        weights: Word2VecWeights,
        ids_V: Array,
        counts_V: Array,
        vocab_size: int,
        standing: dict[str, Any] | None = None,
    ) -> None:
        """`ids_V`: the token of each row. `standing`: how far the training is, if it may go on."""
        super().__init__()
        self.config, self.weights, self.vocab_size = config, weights, vocab_size
        self.ids_V, self.counts_V, self.standing = ids_V, counts_V, standing
        self.vectors_VD, self.output_VD, self.nodes_VD = (rows_VD[:, : config.vector_size] for rows_VD in weights)

    encodes = True

    @classmethod
    def encoder_shape(cls, config: Word2VecConfig, vocab_size: int, eos: int) -> BagShape:
        return BagShape(vocab_size=vocab_size, width=config.vector_size)

    @classmethod
    def encoder_weights(
        cls, config: Word2VecConfig, weights: Mapping[str, Tensor], vocab_size: int
    ) -> dict[str, Tensor]:
        """Tokens without a vector, such as `eos`, get zeros."""
        table_ID = torch.zeros(vocab_size, config.vector_size)
        table_ID[weights["ids"].to(torch.int64)] = weights["vectors"][:, : config.vector_size].to(torch.float32)
        return {"word_table.weight": table_ID}

    @property
    def word_vectors(self) -> WordVectors:
        return WordVectors(self.ids_V, self.vectors_VD)

    def save(self, path: Path) -> None:
        """Write the model to a file: it is its own checkpoint."""
        arrays = dict(zip(ARRAYS, (*self.weights, self.counts_V, self.ids_V), strict=True))
        write_arrays(path, arrays, {"vocab_size": str(self.vocab_size), "standing": json.dumps(self.standing)})

    @classmethod
    def load(cls, config: Word2VecConfig, path: Path) -> Self:
        """The model in a file, mapped into memory."""
        arrays, about = open_arrays(path)
        if set(arrays) != set(ARRAYS) or not {"vocab_size", "standing"} <= set(about):
            raise RunError(f"{path} is not of a word2vec model; restore the run's own file")
        inputs_VD, outputs_VD, nodes_VD, counts_V, ids_V = (arrays[name] for name in ARRAYS)
        weights = Word2VecWeights(inputs_VD, outputs_VD, nodes_VD)
        return cls(config, weights, ids_V, counts_V, int(about["vocab_size"]), json.loads(about["standing"]))

    @property
    def parameter_count(self) -> int:
        """The numbers of the vectors, and of what they are learned with."""
        return self.vectors_VD.size + self.output_VD.size + self.nodes_VD.size
