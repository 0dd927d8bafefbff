"""The fast autoregressive Transformer: an encoder that compares slowly, and a decoder that steps quickly.

The encoder's blocks attend by the slow multi-head attention of `layers/slow_attention.py`, in one direction or in both.
A block of the decoder carries the target's past in the two sums of linear attention, looks into the source by the fast
fully connected softmax of `layers/fast_softmax.py`, and so takes the same time at every step; in training it reads the
whole target in one pass. Positions are those of Vaswani et al., 2017.

The hybrid forward pass leaves out what is not worth reading: padding always, and if wanted the words that are rarer
than a threshold. They are gone before the encoder begins, so that time falls with their share; the others keep their
places, and the decoder sees no more than these. `<eos>` always stays, so that no row is empty.
Legend: B batch, T time, S source time, N positions of all rows, V vocabulary, D width, C the longest window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError
from chainrule.layers.attention.fast_softmax import FastMemory, FastSoftmax
from chainrule.layers.attention.linear import LinearSelfAttention, LinearState, attend_linearly
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.layers.attention.slow import Direction, PackedRows, SlowAttention, Visibility, initialise_slow
from chainrule.layers.blocks import check_heads
from chainrule.layers.dropout import drop, dropout
from chainrule.layers.transformer_stack import initialise
from chainrule.models.translator import Translator, TranslatorConfig
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Preferences, Source, Vocabulary

SIZE = 0.02
"""The deviation of fresh embeddings, and the size of the positions beside them. Larger ones, tied to the output, would
at first make every word likely to follow itself."""

LIVE: dict[str, Any] = {"live": True}
"""Marks options that a finished run may be given other values of."""


class FatConfig(TranslatorConfig):
    """The shape of a fast autoregressive Transformer, and what it leaves unread."""

    embedding: int = Field(256, ge=1, description="width of the residual streams")
    encoder_layers: int = Field(4, ge=1)
    decoder_layers: int = Field(1, ge=1)
    heads: int = Field(4, ge=1)
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of the encoder's attention weights dropped")
    context: int = Field(1024, ge=2, description="most tokens of a source or a target")
    direction: Direction = Field("both", description="which words a word of the source sees: those before, after, both")
    buckets: int = Field(32, ge=4, description="of offsets between target and source, each with a number a head")
    distance: int = Field(64, ge=2, description="offsets from there on share a bucket")
    skip: Literal["never", "training", "always"] = Field(
        "never", description="when rare words of the source are left out", json_schema_extra=LIVE
    )
    threshold_share: float = Field(
        0.05,
        ge=0,
        description="words are rare below so many occurrences, times the size of the source's vocabulary",
        json_schema_extra=LIVE,
    )
    threshold: int | None = Field(
        None,
        ge=0,
        description="words are rare below so many occurrences, whatever the share says",
        json_schema_extra=LIVE,
    )


class Kept(NamedTuple):
    """What of a source is read."""

    rows: PackedRows
    index_N: Tensor | None  # in the source read row by row; None: all of it
    places_BS: Tensor | None  # where in its row each stood; None: one after the other from the first


class Written(NamedTuple):
    """What the decoder remembers."""

    memory: FastMemory
    past: list[LinearState] | None  # of each block; None: all positions come at once
    length: int  # positions so far


class Part(nn.Module):
    """What the blocks of both sides have: norms and a feed-forward layer.

    A step passes every block, so norms and parameters are kept as plain functions and tensors, see layers/blocks.py.
    """

    def __init__(self, width: int, inner: int, norms: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(norms))
        self.normed = [_norm_function(norm) for norm in self.norms]
        self.widen, self.narrow = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.feeding = [self.widen.weight, self.narrow.weight]

    def fed(self, stream_ND: Tensor) -> Tensor:
        """x + feedforward(norm x), ND."""
        wide_XD, narrow_DX = self.feeding
        return self.added(stream_ND, F.relu(F.linear(self.normed[-1](stream_ND), wide_XD)).square(), narrow_DX)

    def added(self, stream_ND: Tensor, found_NX: Tensor, weight_DX: Tensor) -> Tensor:
        """x + W found, ND."""
        if not self.training or not self.rate:
            return torch.addmm(stream_ND, found_NX, weight_DX.t())
        return stream_ND + dropout(F.linear(found_NX, weight_DX), self.rate)


def _norm_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    assert isinstance(norm, nn.LayerNorm)
    return partial(torch.layer_norm, normalized_shape=tuple(norm.normalized_shape), weight=norm.weight, eps=norm.eps)


class EncoderBlock(Part):
    """x + slow attention(norm x), x + feedforward(norm x)."""

    def __init__(self, config: FatConfig) -> None:
        super().__init__(config.embedding, config.feedforward or 4 * config.embedding, 2, config.dropout)
        self.attention = SlowAttention(config.embedding, config.heads, dropout=config.attention_dropout)

    def forward(self, stream_ND: Tensor, sight: Visibility) -> Tensor:
        found_ND = self.attention(self.normed[0](stream_ND), sight)
        return self.fed(self.added(stream_ND, found_ND, self.attention.project_out.weight))


class DecoderBlock(Part):
    """x + linear attention(norm x), x + what the source says(norm x), x + feedforward(norm x)."""

    def __init__(self, config: FatConfig) -> None:
        super().__init__(config.embedding, config.feedforward or 4 * config.embedding, 3, config.dropout)
        self.history = LinearSelfAttention(config.embedding, config.heads)
        self.source = FastSoftmax(
            config.embedding,
            config.heads,
            window=config.context,
            buckets=config.buckets,
            distance=config.distance,
        )
        self.asked = [self.history.project_in.weight, self.history.project_out.weight, self.source.project_out.weight]

    def asking(self, stream_ND: Tensor, batch: int, past: LinearState | None) -> tuple[Tensor, LinearState]:
        """x + linear attention(norm x), ND, and the past with these positions."""
        history, (into_XD, out_DD, _) = self.history, self.asked
        decay_H = None if history.decay is None else history.decay()
        projected_NX = F.linear(self.normed[0](stream_ND), into_XD)
        found_ND, past = attend_linearly(projected_NX, batch, history.heads, past, decay_H)
        return self.added(stream_ND, found_ND, out_DD), past

    def forward(
        self, stream_ND: Tensor, batch: int, past: LinearState | None, memory: FastMemory, layer: int, before: int
    ) -> tuple[Tensor, LinearState]:
        """stream_ND holds the positions of `batch` rows, `before` others having come in each -> the same after it."""
        stream_ND, past = self.asking(stream_ND, batch, past)
        found_ND = self.source(self.normed[1](stream_ND), memory, layer, before)
        return self.fed(self.added(stream_ND, found_ND, self.asked[2])), past


@MODELS.register("fat", family="fat", task="translation")
class Fat(Translator):
    """Slow attention in the encoder, linear attention and the fast softmax in the decoder."""

    Config = FatConfig
    prefers = Preferences(optimizer="muon")
    config: FatConfig
    table_CD: Tensor
    source_counts: Tensor

    def __init__(self, config: FatConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.embedding)
        check_heads(config.embedding, config.heads, "sinusoidal")
        self.window = config.context
        read = vocabulary.source or vocabulary
        self.source_eos = read.eos
        self.register_buffer("source_counts", torch.tensor(vocabulary.read_counts, dtype=torch.int64))
        self.register_buffer("table_CD", SIZE * sinusoidal_table(config.context, config.embedding), persistent=False)
        for table in dict.fromkeys([self.embedding, self.source_embedding]):  # in this order: same seed, same model
            nn.init.normal_(table.weight, std=SIZE)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(config.embedding, bias=False) for _ in range(2))  # of either side
        self.normed = [_norm_function(norm) for norm in self.norms]
        initialise(self.encoder, config.encoder_layers)
        initialise(self.decoder, config.decoder_layers)
        for block in self.encoder:
            assert isinstance(block, EncoderBlock)
            initialise_slow(block.attention, 1.0)

    # The source

    def rarity(self) -> float:
        """Words of the source with fewer occurrences are left out now; 0: none."""
        config = self.config
        if config.skip == "never" or (config.skip == "training" and not self.training):
            return 0.0
        return config.threshold_share * len(self.source_counts) if config.threshold is None else config.threshold

    def kept(self, source: Source) -> Kept:
        """What of a source is read: no padding, and no words that are too rare."""
        kept_BS, rarity = source.mask_BS, self.rarity()
        if rarity:
            frequent_BS = self.source_counts[source.tokens_BS] >= rarity
            kept_BS = kept_BS & (frequent_BS | (source.tokens_BS == self.source_eos))
        B, S = kept_BS.shape
        if bool(kept_BS.all()):
            return Kept(PackedRows(torch.full((B,), S, device=kept_BS.device), S, even=True), None, None)
        rows, index_N = PackedRows.from_mask(kept_BS), kept_BS.flatten().nonzero().squeeze(1)
        first_BS = kept_BS[:, : rows.longest]
        in_order = bool(first_BS.all()) if rows.real_BS is None else torch.equal(first_BS, rows.real_BS)
        return Kept(rows, index_N, None if in_order else rows.pad((index_N % S)[:, None]).squeeze(2))

    def encode(self, source: Source, kept: Kept) -> Tensor:
        """What the encoder makes of the positions that are kept, ND."""
        S = source.tokens_BS.shape[1]
        self._check_room(S)
        if kept.index_N is None:
            embedded_BSD = F.embedding(source.tokens_BS, self.source_embedding.weight)
            stream_ND = (embedded_BSD + self.table_CD[:S]).flatten(0, 1)
        else:
            embedded_ND = F.embedding(source.tokens_BS.flatten()[kept.index_N], self.source_embedding.weight)
            stream_ND = embedded_ND + self.table_CD[kept.index_N % S]
        stream_ND = drop(stream_ND, self.config.dropout, training=self.training)
        sight = Visibility(kept.rows, self.config.direction, stream_ND)
        for block in self.encoder:
            stream_ND = block(stream_ND, sight)
        return self.normed[0](stream_ND)

    def begin(self, source: Source, *, stepping: bool) -> Written:
        kept = self.kept(source)
        memory = self._memory(self.encode(source, kept), kept, source.tokens_BS.shape[1])
        past = [self._block(number).history.start(len(source.tokens_BS)) for number in range(len(self.decoder))]
        return Written(memory, past if stepping else None, 0)

    def _memory(self, encoded_ND: Tensor, kept: Kept, length: int) -> FastMemory:
        rows, added_B11S = kept.rows, None
        if rows.real_BS is not None:
            added_B11S = encoded_ND.new_zeros(rows.real_BS.shape).masked_fill_(~rows.real_BS, -torch.inf)[:, None, None]
        layers = [self._block(number).source for number in range(len(self.decoder))]
        readings = [layer.read(encoded_ND, rows.pad, length) for layer in layers]
        return FastMemory(readings, kept.places_BS, added_B11S)

    def _check_room(self, length: int) -> None:
        if length > self.config.context:
            raise ConfigError(
                f"got {length} tokens, but the model reads at most model.context = {self.config.context}; "
                "shorten the line or train with a larger context"
            )

    # The target

    def _block(self, number: int) -> DecoderBlock:
        block = self.decoder[number]
        assert isinstance(block, DecoderBlock)
        return block

    def _embed(self, tokens_BT: Tensor, before: int) -> Tensor:
        """Target tokens with their positions, ND."""
        end = before + tokens_BT.shape[1]
        self._check_room(end)
        embedded_BTD = F.embedding(tokens_BT, self.embedding.weight)
        stream_BTD = embedded_BTD + self.table_CD[before:end]
        return drop(stream_BTD, self.config.dropout, training=self.training).flatten(0, 1)

    def read(self, state: Written, tokens_BT: Tensor) -> tuple[Tensor, Written]:
        stream_ND, grown = self._embed(tokens_BT, state.length), []
        for number, block in enumerate(self.decoder):
            past = state.past[number] if state.past else None
            stream_ND, past = block(stream_ND, len(tokens_BT), past, state.memory, number, state.length)
            grown.append(past)
        hidden_BTD = self.normed[1](stream_ND).view(*tokens_BT.shape, -1)
        return hidden_BTD, Written(state.memory, grown if state.past else None, state.length + tokens_BT.shape[1])

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """The weights of the last layer, averaged over its heads, BTS; none on what was left out."""
        kept, (B, T) = self.kept(source), tokens_BT.shape
        S, last = source.tokens_BS.shape[1], len(self.decoder) - 1
        memory = self._memory(self.encode(source, kept), kept, S)
        stream_ND = self._embed(self.shifted(tokens_BT), 0)
        for number in range(last):
            stream_ND, _ = self._block(number)(stream_ND, B, None, memory, number, 0)
        block = self._block(last)
        asked_ND = block.normed[1](block.asking(stream_ND, B, None)[0])
        weights_BTS = block.source.weights(asked_ND, memory, last, 0).mean(1)
        if kept.places_BS is None:
            return F.pad(weights_BTS, (0, S - weights_BTS.shape[2]))
        places_BTS = kept.places_BS[:, None].expand(-1, T, -1)
        return weights_BTS.new_zeros(B, T, S).scatter_add_(2, places_BTS, weights_BTS)
