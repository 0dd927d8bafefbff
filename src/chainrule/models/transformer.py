"""The Transformer decoder as a language model: causal self-attention and feed-forward layers on a residual stream.

    x ← x + attention(norm(x))        x ← x + feedforward(norm(x))        in each block; post-norm: x ← norm(x + f(x))

Vaswani et al., "Attention Is All You Need", 2017 (post-norm, sinusoidal positions); Radford et al., "Language Models
are Unsupervised Multitask Learners", 2019 (pre-norm, learned positions); Su et al., "RoFormer", 2021 (rotary).
The block is in `layers/blocks.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from chainrule.engines.decode.weights import Linear, StackWeights
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.blocks import BlockShape, check_heads
from chainrule.layers.compiled import stack_weights
from chainrule.layers.encoders.transformer import TransformerShape
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.types import Preferences


class TransformerConfig(LanguageModelConfig):
    """Options of a Transformer language model."""

    embedding: int = Field(128, ge=1, description="width of the residual stream")
    layers: int = Field(4, ge=1, le=1 << 10, description="number of blocks")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    context: int = Field(256, ge=2, description="largest number of tokens in the window")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = Field(
        "rotary", description="position encoding: rotary, sinusoidal, learned or none"
    )
    norm: Literal["pre", "post"] = Field(
        "pre", description="norms before each layer (pre) or after its residual sum (post)"
    )
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = Field(
        "relu2", description="activation of the feed-forward layers"
    )
    bias: bool = Field(False, description="biases in the linear layers and norms")
    eps: float = Field(1e-5, gt=0, description="constant that the norms add to the variance")


@language_model("transformer", family="transformer")
class Transformer(TransformerStack, FeatureLayer):
    """Causal multi-head self-attention over a window: the GPT decoder."""

    suggestions = (
        "model.layers=6 with model.context=256 for more than 10 MB of text",
        "model.positions=learned for the form of GPT-2",
        "--draft NGRAM in chainrule generate: the same text, faster",
    )

    Config = TransformerConfig
    encodes = True
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)
    rewinds = True
    shardable = True

    def __init__(self, config: TransformerConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        check_heads(config.embedding, config.heads, config.positions)
        self.width, self.window = config.embedding, config.context
        shape = BlockShape(
            width=config.embedding,
            heads=config.heads,
            inner=config.feedforward or 4 * config.embedding,
            activation=config.activation,
            pre=config.norm == "pre",
            bias=config.bias,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            eps=config.eps,
        )
        self.build_stack(shape, config.layers, config.context, config.positions)
        initialise(self, config.layers)
        nn.init.normal_(embedding.weight, std=0.02)

    @classmethod
    def encoder_shape(cls, config: TransformerConfig, vocab_size: int, eos: int) -> TransformerShape:
        """The shape of the same Transformer as an encoder; texts start with `eos`, as in the language model."""
        other = {name for name in LanguageModelConfig.model_fields if name != "dropout"} | {"feedforward"}
        return TransformerShape(
            **config.model_dump(exclude=other),
            vocab_size=vocab_size,
            width=config.embedding,
            inner=config.feedforward or 4 * config.embedding,
            first=eos,
        )

    def compiled(self, embedding: nn.Embedding, bridge: Linear | None, output: Linear | None) -> StackWeights | None:
        return stack_weights(self, embedding, self.window or 0, output) if bridge is None else None

    def start(self, batch: int) -> list[KeyValueCache]:
        return self.start_caches(batch, self.window or 0, next(self.parameters()))

    def rewind(self, state: list[KeyValueCache], count: int) -> list[KeyValueCache]:
        return [cache.remove_last(count) for cache in state]

    def forward(
        self, embedded_BTD: Tensor, state: list[KeyValueCache] | None
    ) -> tuple[Tensor, list[KeyValueCache] | None]:
        """Embeddings after the tokens in the caches -> features BTD and the extended caches."""
        stream_ND = self.add_positions(embedded_BTD, state[0].length if state else 0).flatten(0, 1)
        stream_ND, caches = self.run_blocks(stream_ND, embedded_BTD.shape[0], state)
        return self.norm(stream_ND).view(embedded_BTD.shape), caches if state is not None else None

    def newer(self, embedded_BTD: Tensor, keep: int) -> Tensor:
        B, stream_ND = len(embedded_BTD), self.add_positions(embedded_BTD, 0).flatten(0, 1)
        for block in self.block_list[:-1]:
            stream_ND, _ = block(stream_ND, B)
        features_ND: Tensor = self.norm(self.block_list[-1].newer(stream_ND, B, keep))
        return features_ND.view(B, -1, self.width)

    def attention_weights(self, embedded_BTD: Tensor) -> list[Tensor]:
        stream_ND, weights = self.add_positions(embedded_BTD, 0).flatten(0, 1), []
        for block in self.block_list:
            weights.append(block.self_weights(stream_ND, embedded_BTD.shape[0]))
            stream_ND, _ = block(stream_ND, embedded_BTD.shape[0])
        return weights
