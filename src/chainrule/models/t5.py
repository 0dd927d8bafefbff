"""T5: every task maps a text to a text; one model is pretrained on filling gaps in plain text, then fine-tuned.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. Encoder and
decoder use relative positions: the self-attention score of positions t and s is

    q_t·k_s + b(bucket(s - t))        without a factor 1/√E, with a learned b for each head and bucket of distances

Norms are RMSNorms before each layer, and no layer has biases. `gated` with `activation="gelu-tanh"` and `tied=false` is
the later version 1.1.

T5 uses embeddings of standard deviation 1 and, if the output shares them, divides the decoder's features by √D. Here
the embeddings are stored divided by √D and multiplied by √D when they are read. The function is the same, but training
is faster: unlike the steps of T5's Adafactor, those of AdamW do not scale with the weights and would be too small for
the output to learn from large embeddings.

Sentinels mark the gaps (`data/spans.py`). They are tokens of the model beyond those of its vocabulary.
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
    """Options of a T5."""

    embedding: int = Field(256, ge=1, description="width of the residual streams")
    encoder_layers: int = Field(3, ge=1, le=1 << 10, description="number of encoder blocks")
    decoder_layers: int = Field(3, ge=1, le=1 << 10, description="number of decoder blocks")
    heads: int = Field(4, ge=1, description="attention heads; without `head_width` they must divide the width")
    head_width: int = Field(0, ge=0, description="width of a head; 0: `embedding` divided by `heads`")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    activation: Literal["relu", "gelu-tanh"] = Field("relu", description="activation of the feed-forward layers")
    gated: bool = Field(False, description="multiply the inner activations by a second, linear projection")
    buckets: int = Field(32, ge=4, description="number of buckets of relative positions")
    distance: int = Field(128, ge=3, description="distances from this one on share the last bucket")
    context: int = Field(1024, ge=2, description="largest number of tokens of a source or target")
    sentinels: int = Field(100, ge=0, description="number of tokens that mark gaps, in addition to the vocabulary")
    eps: float = Field(1e-6, gt=0, description="constant that the norms add to the mean square")


class RelativeStack(Stack):
    """One side of a T5; its blocks share one table of relative positions."""

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

    def attention_mask(self, new: int, before: int, real_B11S: Tensor | None = None) -> Tensor:
        """The bias to add to the scores, 1HTL; BHTL, with -inf at padding, if there is padding."""
        bias_1HTL: Tensor = self.relative(new, before)
        return bias_1HTL if real_B11S is None else torch.where(real_B11S, bias_1HTL, -torch.inf)

    def distance_terms(self) -> Tensor:
        bias_1H1L: Tensor = self.relative(1, self.window - 1)
        return bias_1H1L[0, :, 0].flip(1)

    def finish(self, stream_ND: Tensor) -> Tensor:
        return drop(super().finish(stream_ND), self.dropout, training=self.training)


@MODELS.register("t5", family="t5", task="translation")
class T5(EncoderDecoder):
    """Encoder and decoder with relative positions, over a vocabulary with sentinels.

    `sentinels` are their ids. `vocab_size` includes them, `unigram_counts` does not.
    """

    suggestions = (
        "--objective spans on plain text first, then --init RUN on pairs",
        "chainrule fill RUN to fill gaps after pretraining",
    )

    Config = T5Config
    further_verbs = ("fill",)

    def __init__(self, config: T5Config, vocabulary: Vocabulary, output: OutputChoice) -> None:
        if vocabulary.source is not None:
            raise ConfigError("t5 has one vocabulary for source and target, but got two; use a joint tokenizer")
        super().__init__(config, add_sentinels(vocabulary, config.sentinels), output, config.embedding)
        self.sentinels = range(vocabulary.size, vocabulary.size + config.sentinels)
        self.unigram_counts = self.unigram_counts[: vocabulary.size].clone()
        self.encoder = RelativeStack(config, config.encoder_layers, reads_source=False)
        self.decoder = RelativeStack(config, config.decoder_layers, reads_source=True)
        self.window = config.context


def add_sentinels(vocabulary: Vocabulary, sentinels: int) -> Vocabulary:
    """The vocabulary with further tokens, which no text contains."""
    counts_V = np.concatenate([vocabulary.counts_V, np.zeros(sentinels, dtype=np.int64)])
    return Vocabulary(vocabulary.size + sentinels, vocabulary.eos, counts_V)


@torch.no_grad()
def initialise_block(block: Block) -> None:
    """Normal weights as published, with standard deviation 1/√(number of inputs).

    That of the query projections is smaller by √E, since the scores are not scaled.
    """
    shape = block.shape
    query_std = (shape.width * shape.attention_width / shape.heads) ** -0.5
    for name, parameter in block.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=query_std if "project_query" in name else parameter.shape[1] ** -0.5)
    nn.init.normal_(block.project_in.weight[: shape.attention_width], std=query_std)
