"""The layers of every Transformer: attention to itself, to a source if there is one, and a feed-forward layer.

Vaswani et al., "Attention Is All You Need", 2017. The norm stands before each part (pre) or after its sum (post); it is
LayerNorm, or the RMSNorm of Zhang & Sennrich, 2019, which T5 uses.
Legend: B batch, T time, S source time, N = B·T positions, D width, H heads, E width of a head, X = 3·H·E.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.self_attention import KeyValueCache, attend
from chainrule.layers.attention.source_memory import Memory, attend_source
from chainrule.layers.dropout import dropout
from chainrule.types import State

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(x),
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "swish": F.silu,
}


@dataclass(frozen=True)
class BlockShape:
    """What a block is like."""

    width: int
    heads: int
    inner: int  # width of the feed-forward layer
    activation: str = "relu2"
    pre: bool = True
    bias: bool = False  # in linear layers and norms
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_width: int = 0  # 0: the width shared out among the heads
    scale: float | None = None  # of the scores; None: one over the root of a head's width
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    gated: bool = False  # the feed-forward layer's inside is multiplied by a second, linear one

    @property
    def inside(self) -> int:
        """The width of all heads together."""
        return self.heads * (self.head_width or self.width // self.heads)

    def make_norm(self) -> nn.LayerNorm | nn.RMSNorm:
        if self.norm == "rms":
            return nn.RMSNorm(self.width, eps=self.eps)
        return nn.LayerNorm(self.width, eps=self.eps, bias=self.bias)


class Block(nn.Module):
    """x + attention(norm x), x + attention to the source(norm x), x + feedforward(norm x); post-norm norms the sums.

    A generated token passes every block, so the parameters are kept in plain tuples and the functions called on them:
    going through six modules a block would double the time of a step.
    """

    def __init__(self, shape: BlockShape, rotary: Rotary | None = None, *, reads_source: bool = False) -> None:
        super().__init__()
        width, inside, bias = shape.width, shape.inside, shape.bias
        self.shape, self.rotary, self.heads, self.pre = shape, rotary, shape.heads, shape.pre
        self.norm_attention = shape.make_norm()
        self.project_in = nn.Linear(width, 3 * inside, bias=bias)
        self.project_out = nn.Linear(inside, width, bias=bias)
        if reads_source:
            self.norm_source = shape.make_norm()
            self.project_query = nn.Linear(width, inside, bias=bias)
            self.project_memory = nn.Linear(width, 2 * inside, bias=bias)
            self.project_source = nn.Linear(inside, width, bias=bias)
        self.norm_feedforward = shape.make_norm()
        self.widen = nn.Linear(width, (1 + shape.gated) * shape.inner, bias=bias)
        self.narrow = nn.Linear(shape.inner, width, bias=bias)
        self.activation = ACTIVATIONS[shape.activation]
        self.attending = [(layer.weight, layer.bias) for layer in (self.project_in, self.project_out)]
        self.reading = [(x.weight, x.bias) for x in (self.project_query, self.project_source)] if reads_source else []
        self.feeding = [(layer.weight, layer.bias) for layer in (self.widen, self.narrow)]
        norms = (self.norm_attention, self.norm_source if reads_source else None, self.norm_feedforward)
        self.norms = [None if norm is None else _norm_function(norm) for norm in norms]

    def forward(
        self,
        stream_ND: Tensor,
        batch: int,
        cache: State = None,
        *,
        mask: Tensor | None = None,
        causal: bool = True,
        memory: Memory | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, State]:
        """stream_ND holds the positions of `batch` rows one after the other -> the same after this block.

        `cache` is what `start` gave, grown by the positions since; None: begin, and keep none.
        `mask` (B or 1, H or 1, T, T) says who sees whom, or is added to the scores; without it, `causal` decides. Of
        `memory`, the keys and values of `layer` are attended to.
        """
        norm_attention, norm_source, norm_feedforward = self.norms
        assert norm_attention is not None
        assert norm_feedforward is not None
        inputs_ND = norm_attention(stream_ND) if self.pre else stream_ND
        mixed_ND, cache = self._attend(inputs_ND, batch, cache, mask, causal)
        stream_ND = stream_ND + mixed_ND if self.pre else norm_attention(stream_ND + mixed_ND)
        if memory is not None:
            assert norm_source is not None
            inputs_ND = norm_source(stream_ND) if self.pre else stream_ND
            read_ND = self._read(inputs_ND, memory, layer)
            stream_ND = stream_ND + read_ND if self.pre else norm_source(stream_ND + read_ND)
        if self.pre:
            return stream_ND + self._feed(norm_feedforward(stream_ND)), cache
        return norm_feedforward(stream_ND + self._feed(stream_ND)), cache

    def _attend(
        self, inputs_ND: Tensor, batch: int, cache: State, mask: Tensor | None, causal: bool
    ) -> tuple[Tensor, State]:
        dropout = self.shape.attention_dropout if self.training else 0.0
        into, out = self.attending
        projected_NX = F.linear(inputs_ND, *into)
        mixed_ND, cache = attend(
            projected_NX,
            batch,
            self.heads,
            cache,
            self.rotary,
            dropout,
            mask=mask,
            causal=causal,
            scale=self.shape.scale,
        )
        return self._drop(F.linear(mixed_ND, *out)), cache

    def _read(self, inputs_ND: Tensor, memory: Memory, layer: int) -> Tensor:
        dropout = self.shape.attention_dropout if self.training else 0.0
        query, out = self.reading
        mixed_ND = attend_source(F.linear(inputs_ND, *query), memory, layer, dropout, self.shape.scale)
        return self._drop(F.linear(mixed_ND, *out))

    def _feed(self, inputs_ND: Tensor) -> Tensor:
        widen, narrow = self.feeding
        inner = F.linear(inputs_ND, *widen)
        if self.shape.gated:
            inner, gate = inner.chunk(2, -1)
            return self._drop(F.linear(self._drop(self.activation(inner) * gate), *narrow))
        return self._drop(F.linear(self.activation(inner), *narrow))

    def _drop(self, inputs_ND: Tensor) -> Tensor:
        return dropout(inputs_ND, self.shape.dropout) if self.training and self.shape.dropout else inputs_ND

    def start(self, batch: int, window: int, like: Tensor) -> State:
        """What the attention remembers of empty prefixes that become at most `window` long."""
        return KeyValueCache.empty(batch, self.heads, window, self.shape.inside // self.heads, like)

    # What a source is to this block

    def query(self, stream_ND: Tensor, batch: int, mask: Tensor | None = None) -> Tensor:
        """What this block asks the source for, after its self-attention, ND."""
        norm_attention, norm_source, _ = self.norms
        assert norm_attention is not None
        assert norm_source is not None
        mixed_ND, _ = self._attend(norm_attention(stream_ND) if self.pre else stream_ND, batch, None, mask, True)
        stream_ND = stream_ND + mixed_ND if self.pre else norm_attention(stream_ND + mixed_ND)
        return F.linear(norm_source(stream_ND) if self.pre else stream_ND, *self.reading[0])

    def memory_of(self, encoded_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of an encoded source, BHSE each."""
        pairs = F.linear(encoded_BSD, self.project_memory.weight, self.project_memory.bias)
        B, S, _ = encoded_BSD.shape
        key_BHSE, value_BHSE = pairs.view(B, S, 2, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        return key_BHSE, value_BHSE


def _norm_function(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    """The norm as a plain function of its input."""
    shape = tuple(norm.normalized_shape)
    if isinstance(norm, nn.RMSNorm):
        return partial(torch.rms_norm, normalized_shape=shape, weight=norm.weight, eps=norm.eps)
    return partial(torch.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps)


def initialise(module: nn.Module, layers: int) -> None:
    """Normal with deviation 0.02; what writes to the residual stream is scaled down by the number of writers."""
    writers = ("project_out.weight", "project_source.weight", "narrow.weight")
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if name.endswith(writers) else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def check_heads(width: int, heads: int, positions: str) -> int:
    """The width of a head; refuses shapes that do not come out even."""
    if width % heads:
        raise ConfigError(
            f"model.embedding is {width} and model.heads is {heads}: the heads must divide the width "
            f"evenly; try model.heads={max(h for h in range(1, heads) if width % h == 0)}"
        )
    if (width // heads) % 2 and positions == "rotary":
        raise ConfigError(
            f"model.embedding is {width} and model.heads is {heads}: rotary positions turn pairs, "
            f"but a head is {width // heads} wide; choose an even width of heads or other model.positions"
        )
    return width // heads
