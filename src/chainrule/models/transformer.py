"""The Transformer decoder as a language model: masked self-attention and feed-forward layers around a residual stream.

Vaswani et al., "Attention Is All You Need", 2017 (post-norm, sinusoidal positions); Radford et al., "Language Models
are Unsupervised Multitask Learners", 2019 (pre-norm, learned positions); Su et al., "RoFormer", 2021 (rotary).
Legend: B batch, T time, N = B·T positions, D width.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.attention.positions import AddedPositions, Rotary
from chainrule.layers.attention.self_attention import KeyValueCache
from chainrule.layers.blocks import Block, BlockShape, check_heads, initialise
from chainrule.models.language_model import FeatureLayer, LanguageModelConfig, language_model


class TransformerConfig(LanguageModelConfig):
    """The shape of a Transformer language model."""

    embedding: int = Field(128, ge=1, description="width of the residual stream")
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layer; 0: four times the width")
    context: int = Field(256, ge=2, description="most tokens the model sees at once")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = "rotary"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = "relu2"
    bias: bool = Field(False, description="biases in the linear layers and norms")
    eps: float = Field(1e-5, gt=0, description="what the norms add to the variance")


@language_model("transformer", family="transformer")
class Transformer(FeatureLayer):
    """Masked multi-head self-attention over a window: the GPT decoder."""

    Config = TransformerConfig
    rewinds = True

    def __init__(self, config: TransformerConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        head_width = check_heads(config.embedding, config.heads, config.positions)
        self.width, self.window = config.embedding, config.context
        self.heads, self.head_width = config.heads, head_width
        rotary = Rotary(config.context, head_width) if config.positions == "rotary" else None
        added = config.positions in ("learned", "sinusoidal")
        self.positions = AddedPositions(config.positions, config.context, config.embedding) if added else None
        # The sinusoidal table has entries of size 1: embeddings are brought to the same size, as published.
        self.scale = math.sqrt(config.embedding) if config.positions == "sinusoidal" else 1.0
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
        self.chain = [Block(shape, rotary) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(self.chain)
        self.norm = shape.make_norm() if shape.pre else nn.Identity()
        initialise(self, config.layers)
        nn.init.normal_(embedding.weight, std=0.02)

    def start(self, batch: int) -> list[KeyValueCache]:
        like = next(self.parameters())
        return [KeyValueCache.empty(batch, self.heads, self.window or 0, self.head_width, like) for _ in self.blocks]

    def rewind(self, state: list[KeyValueCache], count: int) -> list[KeyValueCache]:
        return [cache.cut(count) for cache in state]

    def forward(
        self, embedded_BTD: Tensor, state: list[KeyValueCache] | None
    ) -> tuple[Tensor, list[KeyValueCache] | None]:
        """embedded_BTD after the tokens in the caches -> features BTD and the longer caches."""
        stream_BTD = embedded_BTD * self.scale if self.scale != 1.0 else embedded_BTD
        if self.positions is not None:
            stream_BTD = self.positions(stream_BTD, state[0].length if state else 0)
        batch, stream_ND = len(embedded_BTD), stream_BTD.flatten(0, 1)
        grown: list[KeyValueCache] = []
        for number, block in enumerate(self.chain):
            stream_ND, cache = block.forward(stream_ND, batch, state[number] if state else None)
            grown.append(cache)
        return self.norm(stream_ND).view(embedded_BTD.shape), grown if state is not None else None
