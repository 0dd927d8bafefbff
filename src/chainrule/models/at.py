"""Transformers with linear attention: the state has a fixed size, so every step has the same cost.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention", 2020; the decay
is that of Sun et al., "Retentive Network", 2023. With φ(x) = elu(x) + 1 and a decay γ per head,

    S_t = γ S_{t-1} + φ(k_t) v_tᵀ      z_t = γ z_{t-1} + φ(k_t)      out_t = φ(q_t)·S_t / φ(q_t)·z_t

replaces softmax attention in each block (`layers/attention/linear.py`). `at` is the language model: it reads text of
any length and carries its state like a recurrent network. `seq2seq-at` is the translator: the encoder of
`seq2seq-transformer`, and a decoder with linear self-attention and softmax attention to the source.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.engines.decode.weights import UNBOUNDED, Linear, StackWeights
from chainrule.layers.attention.linear import Decay, LinearState, attend_linearly, empty_state, head_decays
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.blocks import Block, BlockShape, check_heads
from chainrule.layers.compiled import stack_weights
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.models.seq2seq_transformer import Seq2SeqTransformer, Seq2SeqTransformerConfig
from chainrule.registry import MODELS
from chainrule.types import Preferences, State


class LinearBlock(Block):
    """A block with linear self-attention; its cache is a LinearState."""

    attends_to_all = False

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

    def decays(self) -> Tensor:
        return head_decays(self.decay, self.heads)

    def start(self, batch: int, window: int, like: Tensor) -> LinearState:
        return empty_state(batch, self.heads, self.shape.attention_width // self.heads, like)


class AtConfig(LanguageModelConfig):
    """Options of a language model with linear attention."""

    embedding: int = Field(128, ge=1, description="width of the residual stream")
    layers: int = Field(4, ge=1, le=1 << 10, description="number of blocks")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    decay: bool = Field(True, description="learn a decay of the past for each head; false: no decay")
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = Field(
        "relu2", description="activation of the feed-forward layers"
    )
    bias: bool = Field(False, description="biases in the linear layers and norms")


@language_model("at", family="at", counterpart="seq2seq-at")
class LinearTransformer(TransformerStack, FeatureLayer):
    """Linear self-attention over the whole past, in a state of constant size."""

    suggestions = (
        "model.layers=2 with --minutes 10 for long texts: every step has the same cost",
        "--output adaptive for vocabularies above 20,000 words",
        "chainrule compare TEXT --models at,transformer,lstm",
    )

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
        self.build_stack(shape, config.layers, 0, "none", make_block=partial(LinearBlock, decay=config.decay))
        initialise(self, config.layers)
        nn.init.normal_(embedding.weight, std=0.02)

    def compiled(self, embedding: nn.Embedding, bridge: Linear | None, output: Linear | None) -> StackWeights | None:
        return stack_weights(self, embedding, UNBOUNDED, output) if bridge is None else None

    def start(self, batch: int) -> list[LinearState]:
        return self.start_caches(batch, 0, next(self.parameters()))

    def forward(self, embedded_BTD: Tensor, state: list[LinearState] | None) -> tuple[Tensor, list[LinearState] | None]:
        """Embeddings after the tokens in the state -> features BTD and the state after them."""
        stream_ND, after = self.run_blocks(embedded_BTD.flatten(0, 1), len(embedded_BTD), state)
        return self.norm(stream_ND).view(embedded_BTD.shape), after if state is not None else None


class Seq2SeqAtConfig(Seq2SeqTransformerConfig):
    """Options of a translator whose decoder has linear self-attention."""

    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="position encoding: sinusoidal, learned or none"
    )
    decay: bool = Field(True, description="learn a decay of the past for each head of the decoder; false: no decay")


@MODELS.register("seq2seq-at", family="at", task="translation", counterpart="at")
class Seq2SeqAt(Seq2SeqTransformer):
    """The encoder of a Transformer, and a decoder whose state has constant size."""

    suggestions = (
        "model.decoder_layers=2 for faster translation",
        "chainrule compare SRC TGT --models seq2seq-at,seq2seq-transformer,fat",
    )

    Config = Seq2SeqAtConfig
    config: Seq2SeqAtConfig

    def make_decoder_block(
        self, shape: BlockShape, rotary: Rotary | None = None, *, reads_source: bool = False
    ) -> LinearBlock:
        return LinearBlock(shape, rotary, reads_source=reads_source, decay=self.config.decay)
