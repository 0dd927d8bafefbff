"""The autoregressive Transformer with linear attention: what it remembers has one size, so a step has one cost.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention", 2020; the decay
is that of Sun et al., "Retentive Network", 2023. The equations are in `layers/linear_attention.py`. `at` is the
language model: it reads endless text, its state carried on as that of a recurrent network. `seq2seq-at` is the
translator: its encoder is that of `seq2seq-transformer`, its decoder attends linearly to itself and as usual to the
source.
Legend: B batch, T time, N = B·T positions, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.attention.linear import Decay, LinearState, attend_linearly, empty_state
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.blocks import Block, BlockShape, check_heads
from chainrule.layers.transformer_stack import initialise
from chainrule.models.language_model import FeatureLayer, LanguageModelConfig, language_model
from chainrule.models.seq2seq_transformer import Seq2SeqTransformer, Seq2SeqTransformerConfig
from chainrule.registry import MODELS
from chainrule.types import Preferences, State


class LinearBlock(Block):
    """A block whose attention to itself is linear; what it remembers is a LinearState."""

    def __init__(
        self, shape: BlockShape, rotary: Rotary | None = None, *, reads_source: bool = False, decay: bool = True
    ) -> None:
        super().__init__(shape, rotary, reads_source=reads_source)
        self.decay = Decay(shape.heads) if decay else None

    def _attend(
        self, inputs_ND: Tensor, batch: int, cache: State, mask: Tensor | None, causal: bool
    ) -> tuple[Tensor, State]:
        into, out = self.attention_parameters
        decay_H = None if self.decay is None else self.decay.forward()
        mixed_ND, state = attend_linearly(F.linear(inputs_ND, *into), batch, self.heads, cache, decay_H)
        return self._drop(F.linear(mixed_ND, *out)), None if cache is None else state

    def start(self, batch: int, window: int, like: Tensor) -> LinearState:
        return empty_state(batch, self.heads, self.shape.attention_width // self.heads, like)


class AtConfig(LanguageModelConfig):
    """The shape of a language model with linear attention."""

    embedding: int = Field(128, ge=1, description="width of the residual stream")
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layer; 0: four times the width")
    decay: bool = Field(True, description="each head forgets at a learned rate; false: all that was read counts alike")
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = "relu2"
    bias: bool = Field(False, description="biases in the linear layers and norms")


@language_model("at", family="at", counterpart="seq2seq-at")
class LinearTransformer(FeatureLayer):
    """Linear self-attention over all that was read, in a state of constant size."""

    Config = AtConfig
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)

    def __init__(self, config: AtConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        check_heads(config.embedding, config.heads, "none")
        self.width = config.embedding
        shape = BlockShape(
            width=config.embedding,
            heads=config.heads,
            inner=config.feedforward or 4 * config.embedding,
            activation=config.activation,
            bias=config.bias,
            dropout=config.dropout,
        )
        self.chain = [LinearBlock(shape, decay=config.decay) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(self.chain)
        self.norm = shape.make_norm()
        initialise(self, config.layers)
        nn.init.normal_(embedding.weight, std=0.02)

    def start(self, batch: int) -> list[LinearState]:
        return [block.start(batch, 0, self.norm.weight) for block in self.chain]

    def forward(self, embedded_BTD: Tensor, state: list[LinearState] | None) -> tuple[Tensor, list[LinearState] | None]:
        """embedded_BTD after the tokens in the state -> features BTD and the state after them."""
        batch, stream_ND = len(embedded_BTD), embedded_BTD.flatten(0, 1)
        after: list[LinearState] = []
        for number, block in enumerate(self.chain):
            stream_ND, remembered = block.forward(stream_ND, batch, state[number] if state else None)
            after.append(remembered)
        return self.norm(stream_ND).view(embedded_BTD.shape), after if state is not None else None


class Seq2SeqAtConfig(Seq2SeqTransformerConfig):
    """The shape of a translator whose decoder attends linearly to itself."""

    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    decay: bool = Field(
        True, description="each head forgets at a learned rate; false: all that was written counts alike"
    )


@MODELS.register("seq2seq-at", family="at", task="translation", counterpart="at")
class Seq2SeqAt(Seq2SeqTransformer):
    """The encoder of a Transformer, and a decoder whose state has constant size."""

    Config = Seq2SeqAtConfig

    def decoder_block(self, config: Seq2SeqAtConfig) -> Callable[..., Block]:
        return partial(LinearBlock, decay=config.decay)
