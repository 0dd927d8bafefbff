"""Causal convolutions for nearby tokens, causal self-attention for distant ones, then a feed-forward layer.

    x ← x + GLU(convolution(norm(x)))  for each convolution
    x ← x + attention(norm(x))
    x ← x + feedforward(norm(x))

Gated convolutions: Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2017. Wu et al., "Pay Less
Attention with Lightweight and Dynamic Convolutions", 2019, compare convolutions with self-attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.self_attention import CausalSelfAttention
from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.types import Preferences


class ConvAttentionConfig(LanguageModelConfig):
    """Options of a model with convolutions and attention."""

    embedding: int = Field(128, ge=1, description="width of all layers")
    convolutions: int = Field(3, ge=1, description="number of causal convolutions; the dilation doubles with each")
    kernel: int = Field(3, ge=2, description="positions that one convolution combines")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    context: int = Field(256, ge=2, description="largest number of tokens in the window of the attention")


class ConvAttentionState(NamedTuple):
    """The last inputs of each convolution, BLD each, and the keys and values of the attention."""

    tails: list[Tensor]
    cache: KeyValueCache


class CausalConvolution(nn.Module):
    """A gated, dilated convolution over the current and earlier positions, with a residual connection."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.reach, self.dilation = (kernel - 1) * dilation, dilation
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, kernel, dilation=dilation)

    def forward(self, inputs_BTD: Tensor, tail_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs after the `reach` normalised positions of the tail -> outputs BTD and the new tail BLD."""
        padded_BTD = torch.cat([tail_BLD, self.norm(inputs_BTD)], 1)
        mixed_BTD = F.glu(self.conv(padded_BTD.transpose(1, 2)), dim=1).transpose(1, 2)
        return inputs_BTD + mixed_BTD, padded_BTD[:, padded_BTD.shape[1] - self.reach :]


@language_model("conv-attention", family="conv-attention")
class ConvAttention(FeatureLayer):
    """Local features by convolutions, global ones by attention."""

    suggestions = (
        "model.kernel=5 for a wider local field",
        "chainrule compare TEXT --models conv-attention,transformer",
    )

    Config = ConvAttentionConfig
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)

    def __init__(self, config: ConvAttentionConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        if config.embedding % config.heads:
            raise ConfigError(
                f"model.embedding is {config.embedding} and model.heads is {config.heads}: "
                "the heads must divide the width evenly"
            )
        width = config.embedding
        self.width, self.window, self.heads, self.dropout = width, config.context, config.heads, config.dropout
        self.convolutions = nn.ModuleList(
            CausalConvolution(width, config.kernel, 2**depth) for depth in range(config.convolutions)
        )
        self.reaches = [(config.kernel - 1) * 2**depth for depth in range(config.convolutions)]
        self.norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, config.heads, dropout=config.dropout)
        self.connected = nn.Sequential(
            nn.LayerNorm(width), Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width)
        )

    def start(self, batch: int) -> ConvAttentionState:
        like = self.norm.weight
        tails = [like.new_zeros(batch, reach, self.width) for reach in self.reaches]
        return ConvAttentionState(
            tails, KeyValueCache.empty(batch, self.heads, self.window or 0, self.width // self.heads, like)
        )

    def forward(
        self, embedded_BTD: Tensor, state: ConvAttentionState | None
    ) -> tuple[Tensor, ConvAttentionState | None]:
        past = state or self.start(embedded_BTD.shape[0])
        hidden_BTD, tails = self._convolve(embedded_BTD, past.tails)
        mixed_BTD, cache = self.attention(self.norm(hidden_BTD), past.cache if state else None)
        hidden_BTD = hidden_BTD + drop(mixed_BTD, self.dropout, training=self.training)
        hidden_BTD = hidden_BTD + drop(self.connected(hidden_BTD), self.dropout, training=self.training)
        return hidden_BTD, ConvAttentionState(tails, cache) if state else None

    def _convolve(self, hidden_BTD: Tensor, before: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The stream after the convolutions, BTD, and their last inputs."""
        tails = []
        for layer, tail_BLD in zip(self.convolutions, before, strict=True):
            hidden_BTD, tail_BLD = layer(hidden_BTD, tail_BLD)
            tails.append(tail_BLD)
        return hidden_BTD, tails

    def attention_weights(self, embedded_BTD: Tensor) -> list[Tensor]:
        hidden_BTD, _ = self._convolve(embedded_BTD, self.start(len(embedded_BTD)).tails)
        return [self.attention.weights(self.norm(hidden_BTD))]
