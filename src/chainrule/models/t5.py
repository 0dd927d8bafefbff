"""T5: every task is a text that becomes another text, and one model is first trained to fill gaps in plain text.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. An encoder and
a decoder that know positions only as distances: a learned number for each bucket of distances is added to the scores of
their self-attention. Norms are RMSNorms before each part, scores are not scaled, nothing has a bias. `gated` with
`activation="gelu-tanh"` and `tied=false` is the later version 1.1.

T5 keeps embeddings of size 1, and where the output shares them, divides what the decoder gives by √D. Here the same
vectors are kept √D smaller and multiplied when they are read: the function is the same, but steps of AdamW, whose size
does not follow that of the weights as those of T5's Adafactor do, are then large enough for the output to learn.

Sentinels stand for the gaps (data/spans.py): they are tokens of the model beyond those of its vocabulary.
Legend: B batch, T time, L positions so far, S source time, N positions of all rows, D width, H heads, E width of one.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.attention.relative_positions import RelativePositions
from chainrule.layers.blocks import Block, BlockShape, check_heads
from chainrule.layers.dropout import drop
from chainrule.models.seq2seq_transformer import EncoderDecoder, Stack
from chainrule.models.translator import TranslatorConfig
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Vocabulary


class T5Config(TranslatorConfig):
    """The shape of a T5."""

    embedding: int = Field(256, ge=1, description="width of the residual streams")
    encoder_layers: int = Field(3, ge=1)
    decoder_layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    head_width: int = Field(0, ge=0, description="width of a head; 0: the width shared out among the heads")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    activation: Literal["relu", "gelu-tanh"] = "relu"
    gated: bool = Field(False, description="multiply the inside of the feed-forward layers by a second, linear one")
    buckets: int = Field(32, ge=4, description="groups of distances that attention tells apart")
    distance: int = Field(128, ge=3, description="all distances from this on are in the last group")
    context: int = Field(1024, ge=2, description="most tokens of a source or a target")
    sentinels: int = Field(100, ge=0, description="tokens that stand for gaps, beyond those of the vocabulary")
    eps: float = Field(1e-6, gt=0, description="what the norms add to the mean square")


class RelativeStack(Stack):
    """One side of a T5: its blocks share one table of distances."""

    def __init__(self, config: T5Config, layers: int, *, reads_source: bool) -> None:
        shape = BlockShape(
            width=config.embedding,
            heads=config.heads,
            inner=config.feedforward or 4 * config.embedding,
            activation=config.activation,
            dropout=config.dropout,
            head_width=config.head_width or check_heads(config.embedding, config.heads, "relative"),
            scale=1.0,
            norm="rms",
            eps=config.eps,
            gated=config.gated,
        )
        scale = math.sqrt(config.embedding)
        super().__init__(shape, layers, config.context, "relative", reads_source=reads_source, scale=scale)
        self.relative = RelativePositions(
            config.heads, config.buckets, config.distance, config.context, bidirectional=not reads_source
        )
        nn.init.normal_(self.relative.table_UH, std=config.embedding**-0.5)
        for block in self.block_list:
            initialise_block(block)

    def mask(self, new: int, before: int, seen_B11S: Tensor | None = None) -> Tensor:
        """What is added to the scores, 1HTL, or BHTL where rows are padded unequally."""
        bias_1HTL: Tensor = self.relative(new, before)
        return bias_1HTL if seen_B11S is None else torch.where(seen_B11S, bias_1HTL, -torch.inf)

    def leave(self, stream_ND: Tensor) -> Tensor:
        return drop(super().leave(stream_ND), self.dropout, training=self.training)


@MODELS.register("t5", family="t5", task="translation")
class T5(EncoderDecoder):
    """Encoder and decoder with relative positions, over a vocabulary with sentinels.

    `sentinels` are their ids; `vocab_size` counts them, while `unigram_counts` is of the vocabulary without them.
    """

    Config = T5Config

    def __init__(self, config: T5Config, vocabulary: Vocabulary, output: OutputChoice) -> None:
        if vocabulary.source is not None:
            raise ConfigError(
                "t5 reads and writes one vocabulary, but source and target have one each; use a joint tokenizer"
            )
        super().__init__(config, with_sentinels(vocabulary, config.sentinels), output, config.embedding)
        self.sentinels = range(vocabulary.size, vocabulary.size + config.sentinels)
        self.unigram_counts = self.unigram_counts[: vocabulary.size].clone()
        self.encoder = RelativeStack(config, config.encoder_layers, reads_source=False)
        self.decoder = RelativeStack(config, config.decoder_layers, reads_source=True)
        self.window = config.context


def with_sentinels(vocabulary: Vocabulary, sentinels: int) -> Vocabulary:
    """The vocabulary with so many tokens more, which no text contains."""
    counts_V = np.concatenate([vocabulary.counts_V, np.zeros(sentinels, dtype=np.int64)])
    return Vocabulary(vocabulary.size + sentinels, vocabulary.eos, counts_V)


@torch.no_grad()
def initialise_block(block: Block) -> None:
    """Normal weights as published: deviation one over the root of the number of inputs.

    Queries start smaller by √E, in place of the scores, which are never scaled.
    """
    shape = block.shape
    query_std = (shape.width * shape.attention_width / shape.heads) ** -0.5
    for name, parameter in block.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=query_std if "project_query" in name else parameter.shape[1] ** -0.5)
    nn.init.normal_(block.project_in.weight[: shape.attention_width], std=query_std)
