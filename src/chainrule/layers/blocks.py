"""The block of every Transformer: self-attention, attention to a source if there is one, and a feed-forward layer.

Vaswani et al., "Attention Is All You Need", 2017. Each part has a norm before it (pre) or after its residual sum
(post): LayerNorm, or the RMSNorm of Zhang & Sennrich, 2019, which T5 uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.base.kernels import inference_kernel_supports
from chainrule.base.parameters import ShardUnit
from chainrule.engines.decode.functions import ACTIVATIONS as COMPILED_ACTIVATIONS
from chainrule.engines.decode.functions import activate
from chainrule.errors import ConfigError
from chainrule.layers.attention.dot_product import dropped_weights
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.self_attention import attend, self_weights
from chainrule.layers.attention.source_memory import SourceMemory, attend_source
from chainrule.layers.dropout import dropout, dropout_mask
from chainrule.layers.fused.attention import FusedAttention, Heads, attend_fused
from chainrule.layers.fused.feedforward import FusedFeedforward
from chainrule.layers.fused.linear import Linear, linear
from chainrule.layers.fused.parts import fused_kernels_support
from chainrule.layers.squared_relu import squared_relu
from chainrule.types import State

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(x),
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": squared_relu,
    "swish": F.silu,
}


@dataclass(frozen=True)
class BlockShape:
    """The sizes and variants of a block."""

    width: int
    heads: int
    inner: int  # width of the feed-forward layer
    activation: str = "relu2"
    pre: bool = True
    bias: bool = False  # in linear layers and norms
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_width: int = 0  # 0: width // heads
    scale: float | None = None  # of the scores; None: 1 / √(width of a head)
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    gated: bool = False  # multiply the inner activations by a second, linear projection

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.heads * (self.head_width or self.width // self.heads)

    def make_norm(self) -> nn.LayerNorm | nn.RMSNorm:
        """A new norm of the residual stream."""
        if self.norm == "rms":
            return nn.RMSNorm(self.width, eps=self.eps)
        return nn.LayerNorm(self.width, eps=self.eps, bias=self.bias)


class Block(ShardUnit, nn.Module):
    """x + attention(norm x), x + source attention(norm x), x + feedforward(norm x); post-norm normalises the sums.

    Every generated token passes every block, so parameters are also held in plain tuples for direct function calls:
    calling six modules per block would double the time of a step.
    """

    attends_to_all: ClassVar[bool] = True  # whether self-attention is a softmax over all positions that are visible

    def __init__(self, shape: BlockShape, rotary: Rotary | None = None, *, reads_source: bool = False) -> None:
        super().__init__()
        width, inside, bias = shape.width, shape.attention_width, shape.bias
        self.shape, self.rotary, self.heads, self.pre = shape, rotary, shape.heads, shape.pre
        plain = shape.pre and shape.norm == "layer" and not shape.bias and not shape.gated
        self.fusible = plain and shape.activation == "relu2"
        self.reads_source = reads_source
        self.norm_attention = shape.make_norm()
        self.project_in = Linear(width, 3 * inside, bias=bias)
        self.project_out = Linear(inside, width, bias=bias)
        if reads_source:
            self.norm_source = shape.make_norm()
            self.project_query = Linear(width, inside, bias=bias)
            self.project_memory = Linear(width, 2 * inside, bias=bias)
            self.project_source = Linear(inside, width, bias=bias)
        self.norm_feedforward = shape.make_norm()
        self.widen = Linear(width, (1 + shape.gated) * shape.inner, bias=bias)
        self.narrow = Linear(shape.inner, width, bias=bias)
        self.activation = ACTIVATIONS[shape.activation]
        self.activation_number = COMPILED_ACTIVATIONS.index(shape.activation)
        self.reads_source = reads_source
        self.bind()

    def bind(self) -> None:
        self.attention_parameters = _parameters(self.project_in, self.project_out)
        self.source_parameters = _parameters(self.project_query, self.project_source) if self.reads_source else []
        self.feedforward_parameters = _parameters(self.widen, self.narrow)
        norms = (self.norm_attention, self.norm_source if self.reads_source else None, self.norm_feedforward)
        self.norms = [None if norm is None else _norm_function(norm) for norm in norms]

    def forward(
        self,
        stream_ND: Tensor,
        batch: int,
        cache: State = None,
        *,
        mask: Tensor | None = None,
        causal: bool = True,
        memory: SourceMemory | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, State]:
        """stream_ND holds the positions of `batch` rows, concatenated -> the stream after this block, and the cache.

        `cache` is the result of `start`, extended by the positions since; None: no past, and none is recorded.
        A boolean `mask` (B or 1, H or 1, T, T) marks visible positions, any other is added to the scores; without a
        mask, `causal` decides. Source attention reads the keys and values of `layer` in `memory`.
        """
        norm_attention, norm_source, norm_feedforward = self.norms
        assert norm_attention is not None
        assert norm_feedforward is not None
        fused = self.fusible and not self.divided and fused_kernels_support(stream_ND)
        if fused and self.attends_to_all and causal and cache is None and mask is None:
            stream_ND = self._attend_fused(stream_ND, batch)
        else:
            inputs_ND = norm_attention(stream_ND) if self.pre else stream_ND
            mixed_ND, cache = self._attend(inputs_ND, batch, cache, mask, causal)
            stream_ND = stream_ND + mixed_ND if self.pre else norm_attention(stream_ND + mixed_ND)
        if memory is not None:
            assert norm_source is not None
            inputs_ND = norm_source(stream_ND) if self.pre else stream_ND
            mixed_ND = self._attend_source(inputs_ND, memory, layer)
            stream_ND = stream_ND + mixed_ND if self.pre else norm_source(stream_ND + mixed_ND)
        if fused:
            return self._feed_fused(stream_ND), cache
        if self.pre:
            return stream_ND + self._feedforward(norm_feedforward(stream_ND)), cache
        return norm_feedforward(stream_ND + self._feedforward(stream_ND)), cache

    def newer(self, stream_ND: Tensor, batch: int, keep: int) -> Tensor:
        """The stream after this block at the positions of each row after the first `keep`, without a past."""
        if not self._attends_by_kernel(stream_ND):
            after_ND, _ = self(stream_ND, batch)
            return _newer(after_ND, batch, keep)
        norm_attention, _, norm_feedforward = self.norms
        assert norm_attention is not None
        assert norm_feedforward is not None
        inputs_ND = norm_attention(stream_ND) if self.pre else stream_ND
        mixed_ND = self._attend_whole(inputs_ND, batch, keep)
        stream_ND = _newer(stream_ND, batch, keep)
        if self.pre:
            stream_ND = stream_ND + mixed_ND
            return stream_ND + self._feedforward(norm_feedforward(stream_ND))
        stream_ND = norm_attention(stream_ND + mixed_ND)
        return norm_feedforward(stream_ND + self._feedforward(stream_ND))

    def _attends_by_kernel(self, stream_ND: Tensor) -> bool:
        """Whether the kernel of one core computes causal self-attention here, if it has neither mask nor past."""
        single = inference_kernel_supports(stream_ND) and torch.get_num_threads() == 1
        return single and self.attends_to_all and not self.training

    def _attend_whole(self, inputs_ND: Tensor, batch: int, keep: int = 0) -> Tensor:
        """Causal self-attention without a past, by the kernel, for the positions after the first `keep`."""
        into, out = self.attention_parameters
        mixed_NX, _ = attend_fused(linear(inputs_ND, *into), self._heads(inputs_ND, batch), keep=keep)
        return linear(mixed_NX, *out)

    def _attend(
        self, inputs_ND: Tensor, batch: int, cache: State, mask: Tensor | None, causal: bool
    ) -> tuple[Tensor, State]:
        if causal and cache is None and mask is None and self._attends_by_kernel(inputs_ND):
            return self._attend_whole(inputs_ND, batch), None
        rate = self.shape.attention_dropout if self.training else 0.0
        into, out = self.attention_parameters
        mixed_NX, cache = attend(
            linear(inputs_ND, *into),
            batch,
            self.heads,
            cache,
            self.rotary,
            rate,
            mask=mask,
            causal=causal,
            scale=self.shape.scale,
        )
        return self._drop(linear(mixed_NX, *out)), cache

    def _attend_source(self, inputs_ND: Tensor, memory: SourceMemory, layer: int) -> Tensor:
        rate = self.shape.attention_dropout if self.training else 0.0
        query, out = self.source_parameters
        mixed_NX = attend_source(linear(inputs_ND, *query), memory, layer, rate, self.shape.scale)
        return self._drop(linear(mixed_NX, *out))

    def _feedforward(self, inputs_ND: Tensor) -> Tensor:
        widen, narrow = self.feedforward_parameters
        inner = linear(inputs_ND, *widen)
        if self.shape.gated:
            inner, gate = inner.chunk(2, -1)
            return self._drop(linear(self._drop(self.activation(inner) * gate), *narrow))
        if inference_kernel_supports(inner) and torch.get_num_threads() == 1:
            activate(self.activation_number, inner.view(-1).numpy(), 0, inner.numel())
            return self._drop(linear(inner, *narrow))
        return self._drop(linear(self.activation(inner), *narrow))

    # The same in one core's kernels, with gradients

    def _attend_fused(self, stream_ND: Tensor, batch: int) -> Tensor:
        (into, _), (out, _) = self.attention_parameters
        T, rate = len(stream_ND) // batch, self.shape.attention_dropout if self.training else 0.0
        how = self._heads(stream_ND, batch)
        kept_BHTT = dropped_weights((batch, self.heads, T, T), rate, stream_ND) if rate else None
        summed: Tensor = FusedAttention.apply(
            stream_ND, self.norm_attention.weight, into, out, self.shape.eps, how, kept_BHTT, self._mask(stream_ND)
        )
        return summed

    def _heads(self, stream_ND: Tensor, batch: int) -> Heads:
        T, E = len(stream_ND) // batch, self.shape.attention_width // self.heads
        scale = E**-0.5 if self.shape.scale is None else self.shape.scale
        none = stream_ND.new_empty(0, 0)
        tables = (none, none) if self.rotary is None else (self.rotary.cos_CE[:T], self.rotary.sin_CE[:T])
        return Heads(batch, self.heads, scale, *tables)

    def _feed_fused(self, stream_ND: Tensor) -> Tensor:
        (widen, _), (narrow, _) = self.feedforward_parameters
        summed: Tensor = FusedFeedforward.apply(
            stream_ND, self.norm_feedforward.weight, widen, narrow, self.shape.eps, self._mask(stream_ND)
        )
        return summed

    def _mask(self, stream_ND: Tensor) -> Tensor | None:
        rate = self.shape.dropout if self.training else 0.0
        return dropout_mask(stream_ND, rate) if rate else None

    def _drop(self, inputs_ND: Tensor) -> Tensor:
        return dropout(inputs_ND, self.shape.dropout) if self.training and self.shape.dropout else inputs_ND

    def self_weights(self, stream_ND: Tensor, batch: int) -> Tensor:
        """The weights of the causal self-attention in this block, BHTT."""
        norm_attention = self.norms[0]
        assert norm_attention is not None
        inputs_ND = norm_attention(stream_ND) if self.pre else stream_ND
        projected_NX = linear(inputs_ND, *self.attention_parameters[0])
        return self_weights(projected_NX, batch, self.heads, self.rotary, scale=self.shape.scale)

    def start(self, batch: int, window: int, like: Tensor) -> State:
        """The cache of `batch` empty prefixes that grow to at most `window` positions."""
        return KeyValueCache.empty(batch, self.heads, window, self.shape.attention_width // self.heads, like)

    def decays(self) -> Tensor | None:
        """γ of each head of linear self-attention, H; None: self-attention is a softmax."""
        return None

    # The source

    def source_query(self, stream_ND: Tensor, batch: int, mask: Tensor | None = None) -> Tensor:
        """The queries of this block to the source, which follow its self-attention, NX."""
        norm_attention, norm_source, _ = self.norms
        assert norm_attention is not None
        assert norm_source is not None
        mixed_ND, _ = self._attend(norm_attention(stream_ND) if self.pre else stream_ND, batch, None, mask, True)
        stream_ND = stream_ND + mixed_ND if self.pre else norm_attention(stream_ND + mixed_ND)
        return linear(norm_source(stream_ND) if self.pre else stream_ND, *self.source_parameters[0])

    def make_memory(self, encoded_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of an encoded source, BHSE each."""
        pairs = linear(encoded_BSD, self.project_memory.weight, self.project_memory.bias)
        B, S, _ = encoded_BSD.shape
        key_BHSE, value_BHSE = pairs.view(B, S, 2, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        return key_BHSE, value_BHSE


def _newer(stream_ND: Tensor, batch: int, keep: int) -> Tensor:
    """The positions of each row after the first `keep`."""
    return stream_ND.view(batch, -1, stream_ND.shape[1])[:, keep:].flatten(0, 1)


def _parameters(*layers: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
    return [(layer.weight, layer.bias) for layer in layers]


def _norm_function(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    """The norm as a plain function of its input."""
    shape = tuple(norm.normalized_shape)
    if isinstance(norm, nn.RMSNorm):
        return partial(torch.rms_norm, normalized_shape=shape, weight=norm.weight, eps=norm.eps)
    return partial(torch.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps)


def check_heads(width: int, heads: int, positions: str) -> int:
    """The width of a head; raises ConfigError unless the heads divide the width evenly."""
    if width % heads:
        raise ConfigError(
            f"model.embedding is {width} and model.heads is {heads}: the heads must divide the width "
            f"evenly; try model.heads={max(h for h in range(1, heads) if width % h == 0)}"
        )
    if (width // heads) % 2 and positions == "rotary":
        raise ConfigError(
            f"model.embedding is {width} and model.heads is {heads}: rotary positions need heads of even width, "
            f"but these are {width // heads} wide; choose another model.heads or other model.positions"
        )
    return width // heads
