"""The fast autoregressive Transformer: an expensive encoder, and a decoder whose steps are cheap and of constant cost.

    encoder    x ← x + slow attention(norm(x))             x ← x + feedforward(norm(x))
    decoder    y ← y + linear attention(norm(y))           y ← y + fast softmax(norm(y), encoder(x))
               y ← y + feedforward(norm(y))

The slow multi-head attention (`layers/attention/slow.py`) sees one direction or both. The decoder holds the past of the
target in the two sums of linear attention (`layers/attention/linear.py`) and attends to the source by the fast fully
connected softmax (`layers/attention/fast_softmax.py`). In training it reads the whole target in one pass. Positions are
those of Vaswani et al., "Attention Is All You Need", 2017.

The encoder skips positions: padding always, and optionally words that are rarer than a threshold. They are removed
before the first block, so that the cost falls with their share. The other words keep their positions, and the decoder
attends to them alone. `eos` is never removed, so that no row is empty. A pretrained encoder reads every word: its
projected states take the place of the embeddings, and the blocks above it, if there are any, skip.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.engines.decode.stack import StackState
from chainrule.engines.decode.weights import StackWeights
from chainrule.layers.attention.fast_softmax import FastMemory, FastSoftmax
from chainrule.layers.attention.linear import LinearSelfAttention, LinearState, attend_linearly
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.layers.attention.slow import Direction, PackedRows, SlowAttention, Visibility, initialise_slow
from chainrule.layers.blocks import check_heads
from chainrule.layers.dropout import drop, dropout
from chainrule.layers.fused.linear import Linear
from chainrule.layers.transformer_stack import initialise
from chainrule.models.fat_compiled import fast_weights, side_weights, slow_weights
from chainrule.models.options import live
from chainrule.models.stack_decoder import StackDecoder, check_length
from chainrule.models.translator import EncoderDecoderConfig
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Preferences, Source, Vocabulary

EMBEDDING_STD = 0.02
"""Standard deviation of new embeddings, and scale of the positions that are added to them. Since embeddings are shared
with the output, larger ones would initially make every word likely to follow itself."""


class FatConfig(EncoderDecoderConfig):
    """Options of a fast autoregressive Transformer."""

    encoder_layers: int = Field(
        4,
        ge=0,
        description="number of encoder blocks (with a pretrained encoder the default is 0: none above it)",
    )
    decoder_layers: int = Field(1, ge=1, le=1 << 10, description="number of decoder blocks")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of the encoder's attention weights")
    direction: Direction = Field(
        "both", description="words that a source word attends to: before it, after it, or both"
    )
    buckets: int = Field(32, ge=4, description="number of buckets of offsets between target and source")
    distance: int = Field(64, ge=2, description="offsets from this one on share the last bucket")
    skip: Literal["never", "training", "always"] = Field(
        "never",
        description="when to skip rare words of the source",
        json_schema_extra=live(choices=("never", "always")),
    )
    threshold_share: float = Field(
        0.05,
        ge=0,
        description="words with fewer occurrences than this times the size of the source vocabulary are rare",
        json_schema_extra=live(choices=(0.005, 0.01, 0.02, 0.05, 0.1), where={"skip": ["always"], "threshold": [None]}),
    )
    threshold: int | None = Field(
        None,
        ge=0,
        description="words with fewer occurrences are rare; overrides `threshold_share`",
        json_schema_extra=live(),
    )


class SourceSelection(NamedTuple):
    """The positions of a source that are read."""

    rows: PackedRows
    index_N: Tensor | None  # indices into the flattened source; None: all positions are read
    positions_BS: Tensor | None  # their positions within the row; None: consecutive from 0

    def pick(self, values_BS: Tensor) -> Tensor:
        """What is given for every position of the source, at those that are read, one row after another."""
        values = values_BS.flatten(0, 1)
        return values if self.index_N is None else values[self.index_N]

    def places(self, source: Source) -> Tensor:
        """The positions within their rows, N."""
        B, S = source.tokens_BS.shape
        return self.pick(torch.arange(S, device=source.tokens_BS.device).expand(B, S))


class DecoderState(NamedTuple):
    """The source and the past of the decoder, where torch computes it."""

    memory: FastMemory
    past: list[LinearState] | None  # one per block; None: all positions are read in one pass
    length: int  # positions read


class FeedforwardBlock(nn.Module):
    """The part that blocks of encoder and decoder share: norms and a feed-forward layer.

    A step runs every block, so norms and parameters are also held as plain functions and tensors, see layers/blocks.py.
    """

    def __init__(self, width: int, inner: int, norms: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(norms))
        self.norm_functions = [_norm_function(norm) for norm in self.norms]
        self.widen, self.narrow = Linear(width, inner, bias=False), Linear(inner, width, bias=False)
        self.feedforward_weights = [self.widen.weight, self.narrow.weight]

    def feed_forward(self, stream_ND: Tensor) -> Tensor:
        """x + feedforward(norm x), ND."""
        widen_FD, narrow_DF = self.feedforward_weights
        inner_NF = F.relu(F.linear(self.norm_functions[-1](stream_ND), widen_FD)).square()
        return self.add_projected(stream_ND, inner_NF, narrow_DF)

    def add_projected(self, stream_ND: Tensor, inputs_NF: Tensor, weight_DF: Tensor) -> Tensor:
        """x + dropout(W inputs), ND."""
        if not self.training or not self.rate:
            return torch.addmm(stream_ND, inputs_NF, weight_DF.t())
        return stream_ND + dropout(F.linear(inputs_NF, weight_DF), self.rate)


def _norm_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    assert isinstance(norm, nn.LayerNorm)
    return partial(torch.layer_norm, normalized_shape=tuple(norm.normalized_shape), weight=norm.weight, eps=norm.eps)


class EncoderBlock(FeedforwardBlock):
    """x + slow attention(norm x), x + feedforward(norm x)."""

    def __init__(self, config: FatConfig) -> None:
        super().__init__(config.embedding, config.feedforward or 4 * config.embedding, 2, config.dropout)
        self.attention = SlowAttention(config.embedding, config.heads, dropout=config.attention_dropout)

    def forward(self, stream_ND: Tensor, visible: Visibility) -> Tensor:
        """The stream of all rows, and which positions see each other -> the stream after this block, ND."""
        mixed_ND = self.attention(self.norm_functions[0](stream_ND), visible)
        return self.feed_forward(self.add_projected(stream_ND, mixed_ND, self.attention.project_out.weight))


class DecoderBlock(FeedforwardBlock):
    """x + linear attention(norm x), x + fast softmax(norm x, source), x + feedforward(norm x)."""

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
        history, source = self.history, self.source
        self.projections = [history.project_in.weight, history.project_out.weight, source.project_out.weight]

    def attend_to_past(self, stream_ND: Tensor, batch: int, past: LinearState | None) -> tuple[Tensor, LinearState]:
        """x + linear attention(norm x), ND, and the past with the new positions."""
        history, (into_XD, out_DD, _) = self.history, self.projections
        decay_H = None if history.decay is None else history.decay()
        projected_NX = F.linear(self.norm_functions[0](stream_ND), into_XD)
        mixed_ND, past = attend_linearly(projected_NX, batch, history.heads, past, decay_H)
        return self.add_projected(stream_ND, mixed_ND, out_DD), past

    def forward(
        self, stream_ND: Tensor, batch: int, past: LinearState | None, memory: FastMemory, layer: int, before: int
    ) -> tuple[Tensor, LinearState]:
        """The positions of `batch` rows after the first `before` -> the stream after this block, ND, and the past."""
        stream_ND, past = self.attend_to_past(stream_ND, batch, past)
        mixed_ND = self.source(self.norm_functions[1](stream_ND), memory, layer, before)
        return self.feed_forward(self.add_projected(stream_ND, mixed_ND, self.projections[2])), past


@MODELS.register("fat", family="fat", task="translation")
class Fat(StackDecoder):
    """Slow attention in the encoder, linear attention and the fast softmax in the decoder."""

    suggestions = (
        "model.skip=always with model.threshold=5 to skip rare source words; also after training, with --set",
        "model.direction=left-to-right to read the source in one direction",
    )

    Config = FatConfig
    prefers = Preferences(optimizer="muon")
    config: FatConfig
    table_CD: Tensor  # sinusoidal positions, (context, D)
    source_counts: Tensor  # occurrences of each source token in the training text

    def __init__(self, config: FatConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.embedding)
        check_heads(config.embedding, config.heads, "sinusoidal")
        self.window = config.context
        self.source_eos = (vocabulary.source or vocabulary).eos
        self.register_buffer("source_counts", torch.tensor(vocabulary.read_counts, dtype=torch.int64))
        positions = EMBEDDING_STD * sinusoidal_table(config.context, config.embedding)
        self.register_buffer("table_CD", positions, persistent=False)
        for table in self.own_tables:
            nn.init.normal_(table.weight, std=EMBEDDING_STD)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(config.embedding, bias=False) for _ in range(2))  # encoder, decoder
        self.norm_functions = [_norm_function(norm) for norm in self.norms]
        initialise(self.encoder, config.encoder_layers)
        initialise(self.decoder, config.decoder_layers)
        for block in self.encoder:
            assert isinstance(block, EncoderBlock)
            initialise_slow(block.attention, 1.0)

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        """The blocks of the decoder, with their type."""
        return [block for block in self.decoder if isinstance(block, DecoderBlock)]

    def compiled_decoder(self) -> StackWeights | None:
        if self.bridge is not None:
            return None
        weights = [
            fast_weights(one.history, one.source, one.norms, one.widen, one.narrow) for one in self.decoder_blocks
        ]
        heads, output = self.config.heads, self.output.compiled
        return side_weights(weights, self.embedding, self.table_CD, self.norms[1], heads=heads, output=output)

    def compiled_encoder(self) -> StackWeights | None:
        if self.pretrained is not None:
            return None
        blocks = [block for block in self.encoder if isinstance(block, EncoderBlock)]
        weights = [slow_weights(one.attention, one.norms, one.widen, one.narrow) for one in blocks]
        heads, direction = self.config.heads, self.config.direction
        return side_weights(
            weights, self.source_embedding, self.table_CD, self.norms[0], heads=heads, direction=direction
        )

    # The source

    def skip_threshold(self) -> float:
        """Source words with fewer occurrences are skipped in the current mode; 0: none are."""
        config = self.config
        if config.skip == "never" or (config.skip == "training" and not self.training):
            return 0.0
        return config.threshold_share * len(self.source_counts) if config.threshold is None else config.threshold

    def select_positions(self, source: Source) -> SourceSelection:
        """The positions of a source that are read: neither padding nor rare words that are skipped."""
        kept_BS, threshold = source.mask_BS, self.skip_threshold()
        if threshold:
            frequent_BS = self.source_counts[source.tokens_BS] >= threshold
            kept_BS = kept_BS & (frequent_BS | (source.tokens_BS == self.source_eos))
        B, S = kept_BS.shape
        if bool(kept_BS.all()):
            return SourceSelection(PackedRows(torch.full((B,), S, device=kept_BS.device), S, even=True), None, None)
        rows, index_N = PackedRows.from_mask(kept_BS), kept_BS.flatten().nonzero().squeeze(1)
        first_BS = kept_BS[:, : rows.longest]
        consecutive = bool(first_BS.all()) if rows.real_BS is None else torch.equal(first_BS, rows.real_BS)
        return SourceSelection(rows, index_N, None if consecutive else rows.pad((index_N % S)[:, None]).squeeze(2))

    def encode(self, source: Source, selection: SourceSelection) -> Tensor:
        """The features of the selected positions, ND."""
        check_length(source.tokens_BS.shape[1], self.window)
        positions_ND = self.table_CD[selection.places(source)]
        if self.pretrained is not None:
            # Its states are larger than embeddings, and so are the positions that are added to them.
            stream_ND = selection.pick(self.pretrained(source)) + positions_ND / EMBEDDING_STD
        else:
            stream_ND = F.embedding(selection.pick(source.tokens_BS), self.source_embedding.weight) + positions_ND
        stream_ND = drop(stream_ND, self.config.dropout, training=self.training)
        visible = Visibility(selection.rows, self.config.direction, stream_ND)
        for block in self.encoder:
            stream_ND = block(stream_ND, visible)
        return self.norm_functions[0](stream_ND)

    def encode_for_steps(self, source: Source, selection: SourceSelection) -> Tensor:
        """The same; by the engine, where it can."""
        engine = self.encoder_engine()
        if engine is None:
            return self.encode(source, selection)
        check_length(source.tokens_BS.shape[1], self.window)
        token_N, place_N = selection.pick(source.tokens_BS), selection.places(source)
        return torch.from_numpy(engine.encode(token_N.numpy(), selection.rows.lengths_B.numpy(), place_N.numpy()))

    def begin(self, source: Source, *, stepping: bool) -> DecoderState | StackState:
        selection = self.select_positions(source)
        engine = self.decoder_engine() if stepping else None
        if engine is not None:
            encoded_ND = self.encode_for_steps(source, selection).numpy()
            place_N, count_B = selection.places(source).numpy(), selection.rows.lengths_B.numpy()
            return engine.start(len(source.tokens_BS), engine.sources(encoded_ND, count_B, place_N))
        memory = self._make_memory(self.encode(source, selection), selection, source.tokens_BS.shape[1])
        past = [block.history.start(len(source.tokens_BS)) for block in self.decoder_blocks]
        return DecoderState(memory, past if stepping else None, 0)

    def _make_memory(self, encoded_ND: Tensor, selection: SourceSelection, length: int) -> FastMemory:
        rows, bias_B11S = selection.rows, None
        if rows.real_BS is not None:
            bias_B11S = encoded_ND.new_zeros(rows.real_BS.shape).masked_fill_(~rows.real_BS, -torch.inf)[:, None, None]
        memories = [block.source.read(encoded_ND, rows.pad, length) for block in self.decoder_blocks]
        return FastMemory(memories, selection.positions_BS, bias_B11S)

    # The target

    def _embed(self, tokens_BT: Tensor, before: int) -> Tensor:
        """Target tokens with the positions that follow the first `before` ones, ND."""
        end = before + tokens_BT.shape[1]
        check_length(end, self.window)
        embedded_BTD = F.embedding(tokens_BT, self.embedding.weight)
        stream_BTD = embedded_BTD + self.table_CD[before:end]
        return drop(stream_BTD, self.config.dropout, training=self.training).flatten(0, 1)

    def read_layers(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        stream_ND, after = self._embed(tokens_BT, state.length), []
        for number, block in enumerate(self.decoder):
            past = state.past[number] if state.past else None
            stream_ND, past = block(stream_ND, len(tokens_BT), past, state.memory, number, state.length)
            after.append(past)
        hidden_BTD = self.norm_functions[1](stream_ND).view(*tokens_BT.shape, -1)
        length = state.length + tokens_BT.shape[1]
        return hidden_BTD, DecoderState(state.memory, after if state.past else None, length)

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """The attention weights of the last layer, averaged over its heads, BTS; 0 at skipped words."""
        selection, (B, T) = self.select_positions(source), tokens_BT.shape
        S, (*before, block), last = source.tokens_BS.shape[1], self.decoder_blocks, len(self.decoder) - 1
        memory = self._make_memory(self.encode(source, selection), selection, S)
        stream_ND = self._embed(self.shift_right(tokens_BT), 0)
        for number, one in enumerate(before):
            stream_ND, _ = one(stream_ND, B, None, memory, number, 0)
        query_ND = block.norm_functions[1](block.attend_to_past(stream_ND, B, None)[0])
        weights_BTS = block.source.weights(query_ND, memory, last, 0).mean(1)
        if selection.positions_BS is None:
            return F.pad(weights_BTS, (0, S - weights_BTS.shape[2]))
        positions_BTS = selection.positions_BS[:, None].expand(-1, T, -1)
        return weights_BTS.new_zeros(B, T, S).scatter_add_(2, positions_BTS, weights_BTS)
