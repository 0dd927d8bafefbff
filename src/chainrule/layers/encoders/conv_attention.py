"""Convolutions for nearby words, self-attention for distant ones, then a fully connected layer.

The layers of the language model `conv-attention` without its causal mask: every position sees the whole text. The
convolutions are gated (Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2017) and dilated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.attention.self_attention import attend
from chainrule.layers.attention.source_memory import source_mask
from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import EncoderSizes, TableEncoder, TableShape, check_head_count
from chainrule.layers.fused.linear import Linear
from chainrule.registry import ENCODERS


class ConvAttentionShape(TableShape):
    """The shape of convolutions followed by attention."""

    kind: Literal["conv-attention"] = "conv-attention"
    convolutions: int = Field(3, ge=1, description="convolution layers; each has twice the dilation of the previous")
    kernel: int = Field(3, ge=2, description="positions that one convolution sees")
    heads: int = Field(4, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_head_count(self.width, self.heads)
        return self

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        return cls(
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            convolutions=sizes.layers + 1,
            heads=sizes.heads,
            dropout=sizes.dropout,
            first=sizes.first,
        )


class Convolution(nn.Module):
    """A gated, dilated convolution of both sides, with a residual connection."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        reach = (kernel - 1) * dilation
        self.before, self.after = reach // 2, reach - reach // 2
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, kernel, dilation=dilation)

    def forward(self, inputs_BSD: Tensor, real_BS1: Tensor) -> Tensor:
        """`real_BS1` is 0 at padding, which the convolution sees as zeros, like positions outside the text -> BSD."""
        normed_BDS = (self.norm(inputs_BSD) * real_BS1).transpose(1, 2)
        mixed_BDS = F.glu(self.conv(F.pad(normed_BDS, (self.before, self.after))), dim=1)
        return inputs_BSD + mixed_BDS.transpose(1, 2)


@ENCODERS.register("conv-attention")
class ConvAttentionEncoder(TableEncoder):
    """Embeddings, convolutions, one layer of attention, one fully connected layer."""

    Shape = ConvAttentionShape
    shape: ConvAttentionShape

    def __init__(self, shape: ConvAttentionShape) -> None:
        super().__init__(shape, shape.width)
        width = shape.width
        self.convolutions = nn.ModuleList(
            Convolution(width, shape.kernel, 2**depth) for depth in range(shape.convolutions)
        )
        self.norm = nn.LayerNorm(width)
        self.project_in, self.project_out = Linear(width, 3 * width), Linear(width, width)
        self.connected = nn.Sequential(
            nn.LayerNorm(width), Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width)
        )

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        states_BSD = self._drop(self.word_table(tokens_BS))
        real_BS1 = mask_BS[:, :, None].to(states_BSD.dtype)
        for layer in self.convolutions:
            states_BSD = layer(states_BSD, real_BS1)
            yield states_BSD
        projected_NX = self.project_in(self.norm(states_BSD)).flatten(0, 1)
        rate, mask = self.shape.dropout if self.training else 0.0, source_mask(mask_BS)
        mixed_ND, _ = attend(
            projected_NX, len(tokens_BS), self.shape.heads, None, dropout=rate, mask=mask, causal=False
        )
        states_BSD = states_BSD + self._drop(self.project_out(mixed_ND.view(states_BSD.shape)))
        yield states_BSD + self._drop(self.connected(states_BSD))

    def _drop(self, inputs_BSD: Tensor) -> Tensor:
        return drop(inputs_BSD, self.shape.dropout, training=self.training)
