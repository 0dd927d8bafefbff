"""word2vec: one vector per word, trained to distinguish words that occur together from random ones.

    loss = -log σ(o_w·h) - Σ_k log σ(-o_k·h)        for a word w in the text and words k drawn at random

h is the vector of one context word (skip-gram) or the mean or sum of the vectors of the context (CBOW). A hierarchical
softmax can replace the random words. Mikolov et al., "Efficient Estimation of Word Representations in Vector Space" and
"Distributed Representations of Words and Phrases and their Compositionality", 2013. The training loops are in
`engines/word2vec/kernels.py`. The options have the names and meanings of gensim's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.base.arrays import Array, open_arrays, write_arrays
from chainrule.config import Section
from chainrule.engines.word2vec.kernels import SweepOptions, Word2VecWeights
from chainrule.engines.word2vec.sweeps import SweepPlan
from chainrule.errors import ConfigError, RunError
from chainrule.layers.encoders.bag import BagShape
from chainrule.registry import MODELS
from chainrule.types import Model, WordVectors

ARRAYS = ("vectors", "outputs", "nodes", "counts", "ids")


class Word2VecConfig(Section):
    """Options of word2vec."""

    sg: Literal[0, 1] = Field(0, description="1: skip-gram, 0: CBOW")
    vector_size: int = Field(100, ge=1, description="width of the vectors")
    window: int = Field(5, ge=1, description="largest number of context words on either side")
    hs: Literal[0, 1] = Field(0, description="1: hierarchical softmax over a Huffman tree of the words")
    negative: int = Field(5, ge=0, description="negative words drawn for each prediction; 0: no negative sampling")
    ns_exponent: float = Field(0.75, description="negative words are drawn in proportion to their count to this power")
    cbow_mean: Literal[0, 1] = Field(1, description="CBOW: 1 averages the vectors of the context, 0 sums them")
    sample: float = Field(
        1e-3, ge=0, lt=1, description="frequency above which occurrences of a word are dropped at random; 0: never"
    )
    alpha: float = Field(0.025, gt=0, description="learning rate at the start")
    min_alpha: float = Field(0.0001, ge=0, description="learning rate at the end")
    shrink_windows: bool = Field(True, description="draw the context size of each word uniformly from 1 to `window`")
    min_count: int = Field(5, ge=1, description="drop words with fewer occurrences")
    epochs: int = Field(5, ge=1, description="passes over the text, unless `training.epochs` is set")
    workers: int | None = Field(
        None,
        ge=1,
        description="threads (default: `training.threads`, else one per core); 1: reproducible vectors",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.hs and not self.negative:
            raise ConfigError(
                "model.hs and model.negative are both 0, so there is no training objective; set model.negative=5 "
                "or model.hs=1"
            )
        if self.min_alpha > self.alpha:
            raise ConfigError(
                f"model.min_alpha is {self.min_alpha:g}, above model.alpha = {self.alpha:g}; the learning rate falls "
                "from alpha to min_alpha"
            )
        return self

    def plan(self, seed: int) -> SweepPlan:
        """These options for the training loops."""
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
    """Word vectors, and the output weights they were trained with.

    Training may pad the rows with zeros. They are kept and saved with the padding, so that they are never copied.
    """

    suggestions = (
        "model.sg=1 for skip-gram, better for rare words",
        "--epochs 20 on less than 10 MB of text",
        "model.hs=1 for the hierarchical softmax",
    )

    Config: ClassVar[type[Word2VecConfig]] = Word2VecConfig
    stores_arrays = True

    def __init__(
        self,
        config: Word2VecConfig,
        weights: Word2VecWeights,
        ids_V: Array,
        counts_V: Array,
        vocab_size: int,
        training_progress: dict[str, Any] | None = None,
    ) -> None:
        """`ids_V` is the token of each row, `training_progress` the position of a training that can be resumed."""
        super().__init__()
        self.config, self.weights, self.vocab_size = config, weights, vocab_size
        self.ids_V, self.counts_V, self.training_progress = ids_V, counts_V, training_progress
        self.vectors_VD, self.output_VD, self.nodes_VD = (rows_RD[:, : config.vector_size] for rows_RD in weights)

    encodes = True

    @classmethod
    def encoder_shape(cls, config: Word2VecConfig, vocab_size: int, eos: int) -> BagShape:
        return BagShape(vocab_size=vocab_size, width=config.vector_size)

    @classmethod
    def encoder_weights(
        cls, config: Word2VecConfig, weights: Mapping[str, Tensor], vocab_size: int
    ) -> dict[str, Tensor]:
        """The vectors as an embedding table; tokens without a vector, such as `eos`, get zeros."""
        table_ID = torch.zeros(vocab_size, config.vector_size)
        table_ID[weights["ids"].to(torch.int64)] = weights["vectors"][:, : config.vector_size].to(torch.float32)
        return {"word_table.weight": table_ID}

    @property
    def word_vectors(self) -> WordVectors:
        return WordVectors(self.ids_V, self.vectors_VD)

    def save(self, path: Path) -> None:
        """Write the model to a file, which is also its checkpoint."""
        arrays = dict(zip(ARRAYS, (*self.weights, self.counts_V, self.ids_V), strict=True))
        metadata = {"vocab_size": str(self.vocab_size), "standing": json.dumps(self.training_progress)}
        write_arrays(path, arrays, metadata)

    @classmethod
    def load(cls, config: Word2VecConfig, path: Path) -> Self:
        """The model in a file, mapped into memory."""
        arrays, metadata = open_arrays(path)
        if set(arrays) != set(ARRAYS) or not {"vocab_size", "standing"} <= set(metadata):
            raise RunError(f"{path} is not the file of a word2vec model; restore the original file of the run")
        inputs_VD, outputs_VD, nodes_VD, counts_V, ids_V = (arrays[name] for name in ARRAYS)
        weights = Word2VecWeights(inputs_VD, outputs_VD, nodes_VD)
        try:
            vocab_size, training_progress = int(metadata["vocab_size"]), json.loads(metadata["standing"])
        except (ValueError, RecursionError):
            raise RunError(f"{path} has damaged metadata; restore the original file of the run") from None
        return cls(config, weights, ids_V, counts_V, vocab_size, training_progress)

    @property
    def parameter_count(self) -> int:
        """The number of values of the vectors and of the output weights."""
        return self.vectors_VD.size + self.output_VD.size + self.nodes_VD.size
