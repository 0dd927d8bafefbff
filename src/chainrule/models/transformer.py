"""The Transformer decoder as a language model: masked self-attention and feed-forward layers around a residual stream.

Vaswani et al., "Attention Is All You Need", 2017 (post-norm, sinusoidal positions); Radford et al., "Language Models
are Unsupervised Multitask Learners", 2019 (pre-norm, learned positions); Su et al., "RoFormer", 2021 (rotary).
Legend: B batch, T time, N = B·T positions, D width, X = 3D.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError
from chainrule.layers.attention import KeyValueCache, attend
from chainrule.layers.positions import AddedPositions, Rotary
from chainrule.models.language_model import FeatureLayer, LanguageModelConfig, language_model

ACTIVATIONS = {
    "gelu": lambda x: F.gelu(x),
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


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


class Block(nn.Module):
    """x + attention(norm x), then x + feedforward(norm x); post-norm puts the norms after the sums.

    A generated token passes every block, so the parameters are kept in plain tuples and the functions called on them:
    going through six modules a block would double the time of a step.
    """

    def __init__(self, config: TransformerConfig, rotary: Rotary | None) -> None:
        super().__init__()
        width, inner, bias = config.embedding, config.feedforward or 4 * config.embedding, config.bias
        self.norm_attention = nn.LayerNorm(width, bias=bias)
        self.project_in = nn.Linear(width, 3 * width, bias=bias)
        self.project_out = nn.Linear(width, width, bias=bias)
        self.norm_feedforward = nn.LayerNorm(width, bias=bias)
        self.widen = nn.Linear(width, inner, bias=bias)
        self.narrow = nn.Linear(inner, width, bias=bias)
        self.rotary = rotary
        norms, layers = (self.norm_attention, self.norm_feedforward), (self.project_in, self.project_out)
        self.norms = [((width,), norm.weight, norm.bias, norm.eps) for norm in norms]
        self.attending = [(layer.weight, layer.bias) for layer in layers]
        self.feeding = [(layer.weight, layer.bias) for layer in (self.widen, self.narrow)]
        self.activation, self.heads = ACTIVATIONS[config.activation], config.heads
        self.pre, self.dropout = config.norm == "pre", config.dropout

    def forward(
        self, stream_ND: Tensor, batch: int, cache: KeyValueCache | None
    ) -> tuple[Tensor, KeyValueCache | None]:
        """stream_ND holds the positions of `batch` rows one after the other -> the same after this block."""
        norm_attention, norm_feedforward = self.norms
        if self.pre:
            mixed_ND, cache = self._attend(torch.layer_norm(stream_ND, *norm_attention), batch, cache)
            stream_ND = stream_ND + mixed_ND
            return stream_ND + self._feed(torch.layer_norm(stream_ND, *norm_feedforward)), cache
        mixed_ND, cache = self._attend(stream_ND, batch, cache)
        stream_ND = torch.layer_norm(stream_ND + mixed_ND, *norm_attention)
        return torch.layer_norm(stream_ND + self._feed(stream_ND), *norm_feedforward), cache

    def _attend(
        self, inputs_ND: Tensor, batch: int, cache: KeyValueCache | None
    ) -> tuple[Tensor, KeyValueCache | None]:
        dropout = self.dropout if self.training else 0.0
        into, out = self.attending
        mixed_ND, cache = attend(F.linear(inputs_ND, *into), batch, self.heads, cache, self.rotary, dropout)
        return self._drop(F.linear(mixed_ND, *out)), cache

    def _feed(self, inputs_ND: Tensor) -> Tensor:
        widen, narrow = self.feeding
        return self._drop(F.linear(self.activation(F.linear(inputs_ND, *widen)), *narrow))

    def _drop(self, inputs_ND: Tensor) -> Tensor:
        return F.dropout(inputs_ND, self.dropout) if self.training and self.dropout else inputs_ND


@language_model("transformer", family="transformer")
class Transformer(FeatureLayer):
    """Masked multi-head self-attention over a window: the GPT decoder."""

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        head_width = _head_width(config)
        self.width, self.window = config.embedding, config.context
        self.heads, self.head_width = config.heads, head_width
        rotary = Rotary(config.context, head_width) if config.positions == "rotary" else None
        added = config.positions in ("learned", "sinusoidal")
        self.positions = AddedPositions(config.positions, config.context, config.embedding) if added else None
        # The sinusoidal table has entries of size 1: embeddings are brought to the same size, as published.
        self.scale = math.sqrt(config.embedding) if config.positions == "sinusoidal" else 1.0
        self.chain = [Block(config, rotary) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(self.chain)
        self.norm = nn.LayerNorm(config.embedding, bias=config.bias) if config.norm == "pre" else nn.Identity()
        self._initialise(config.layers)
        nn.init.normal_(embedding.weight, std=0.02)

    def _initialise(self, layers: int) -> None:
        """Normal with deviation 0.02; what writes to the residual stream is scaled down by the number of writers."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("project_out.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if writes else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def start(self, batch: int) -> list[KeyValueCache]:
        like = next(self.parameters())
        return [KeyValueCache.empty(batch, self.heads, self.window or 0, self.head_width, like) for _ in self.blocks]

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
            grown.append(cache)  # type: ignore[arg-type]
        return self.norm(stream_ND).view(embedded_BTD.shape), grown if state is not None else None


def _head_width(config: TransformerConfig) -> int:
    if config.embedding % config.heads:
        raise ConfigError(
            f"model.embedding is {config.embedding} and model.heads is {config.heads}: the heads must divide the width "
            f"evenly; try model.heads={max(h for h in range(1, config.heads) if config.embedding % h == 0)}"
        )
    width = config.embedding // config.heads
    if width % 2 and config.positions == "rotary":
        raise ConfigError(
            f"model.embedding is {config.embedding} and model.heads is {config.heads}: rotary positions turn pairs, "
            f"but a head is {width} wide; choose an even width of heads or other model.positions"
        )
    return width
