"""The Transformer as it was first published: an encoder, a masked decoder, and attention from one to the other.

Vaswani et al., "Attention Is All You Need", 2017. Positions and norms are those of the language model in
`transformer.py`; depths of encoder and decoder are free (a deep encoder with a shallow decoder translates quicker,
Kasai et al., 2021).
Legend: B batch, T time, S source time, N positions of all rows, D width, C the longest window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.source_memory import SourceMemory, source_mask, source_weights
from chainrule.layers.blocks import Block, BlockShape, check_heads
from chainrule.layers.dropout import drop
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.models.translator import Translator, TranslatorConfig
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Preferences, Source, State, TextEncoder, Vocabulary


class Seq2SeqTransformerConfig(TranslatorConfig):
    """The shape of a Transformer translator."""

    embedding: int = Field(256, ge=1, description="width of the residual streams")
    encoder_layers: int = Field(3, ge=1)
    decoder_layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="share of the attention weights dropped")
    context: int = Field(1024, ge=2, description="most tokens of a source or a target")
    # Rotary positions tell a side's own distances alone: the decoder could not see where in the source it looks.
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = "sinusoidal"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu", "swish"] = "relu2"
    bias: bool = Field(False, description="biases in the linear layers and norms")


class Written(NamedTuple):
    """What the decoder remembers: the source, and its own positions so far."""

    memory: SourceMemory
    caches: list[State] | None  # of each block; None: all positions come at once
    length: int = 0  # positions so far


class Stack(TransformerStack):
    """One side of the model: positions, blocks and final norm."""

    def __init__(
        self,
        shape: BlockShape,
        layers: int,
        window: int,
        positions: str,
        *,
        reads_source: bool,
        scale: float | None = None,
        make_block: Callable[..., Block] = Block,
    ) -> None:
        super().__init__()
        self.build_stack(
            shape, layers, window, positions, scale=scale, make_block=make_block, reads_source=reads_source
        )
        self.dropout, self.window = shape.dropout, window

    def embed(self, embedded_BTD: Tensor, before: int) -> Tensor:
        """Embeddings with their positions, `before` of them having come already -> ND."""
        if before + embedded_BTD.shape[1] > self.window:
            raise ConfigError(
                f"got {before + embedded_BTD.shape[1]} tokens, but the model reads at most model.context = "
                f"{self.window}; shorten the line or train with a larger context"
            )
        return drop(self.add_positions(embedded_BTD, before), self.dropout, training=self.training).flatten(0, 1)

    def mask(self, new: int, before: int, seen_B11S: Tensor | None = None) -> Tensor | None:
        """What the blocks are given as their mask when `new` positions come after `before` others.

        `seen_B11S` is False where the side is padded. None: they see all, or all before them, as the side is read.
        """
        return seen_B11S

    def leave(self, stream_ND: Tensor) -> Tensor:
        """The stream as it comes out of the last block -> the features of this side, ND."""
        features_ND: Tensor = self.norm(stream_ND)
        return features_ND


class EncoderDecoder(Translator):
    """A stack that reads the source, and one that writes the target and attends to it. Subclasses make the two."""

    encoder: Stack
    decoder: Stack
    first = None
    reads_eos = True

    @property
    def max_tokens(self) -> int | None:
        return self.window

    @property
    def text_encoder(self) -> TextEncoder:
        return self

    def encode(self, source: Source) -> Tensor:
        """What the encoder makes of a source, BSD."""
        embedded_BSD = self.source_embedding(source.tokens_BS)
        B, S, _ = embedded_BSD.shape
        stream_ND = self.encoder.embed(embedded_BSD, 0)
        mask = self.encoder.mask(S, 0, source_mask(source.mask_BS))
        stream_ND, _ = self.encoder.run_blocks(stream_ND, B, mask=mask, causal=False)
        return self.encoder.leave(stream_ND).view(embedded_BSD.shape)

    def encode_text(self, source: Source) -> Tensor:
        return self.encode(source)

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor] | None:
        """None: the layers of the encoder cannot be read separately."""
        return None

    def begin(self, source: Source, *, stepping: bool) -> Written:
        encoded_BSD = self.encode(source)
        pairs = [block.make_memory(encoded_BSD) for block in self.decoder.block_list]
        memory = SourceMemory(pairs, source_mask(source.mask_BS))
        if not stepping:
            return Written(memory, None)
        return Written(memory, self.decoder.start_caches(len(encoded_BSD), self.decoder.window, encoded_BSD))

    def read(self, state: Written, tokens_BT: Tensor) -> tuple[Tensor, Written]:
        embedded_BTD = self.embedding(tokens_BT)
        (B, T), before = tokens_BT.shape, state.length
        stream_ND = self.decoder.embed(embedded_BTD, before)
        mask = self.decoder.mask(T, before)
        stream_ND, caches = self.decoder.run_blocks(stream_ND, B, state.caches, mask=mask, memory=state.memory)
        hidden_BTD = self.decoder.leave(stream_ND).view(embedded_BTD.shape)
        return hidden_BTD, Written(state.memory, caches if state.caches else None, before + T)

    def rewindable(self, state: Written) -> int | None:
        if state.caches is None or not all(isinstance(cache, KeyValueCache) for cache in state.caches):
            return None
        return self.decoder.window - state.length

    def rewind(self, state: Written, count: int) -> Written:
        assert state.caches is not None
        return Written(state.memory, [cache.remove_last(count) for cache in state.caches], state.length - count)

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """The weights of the last layer, averaged over its heads, BTS."""
        state, (B, T) = self.begin(source, stepping=False), tokens_BT.shape
        stream_ND, mask = self.decoder.embed(self.embedding(self.shifted(tokens_BT)), 0), self.decoder.mask(T, 0)
        *before, last = self.decoder.block_list
        for number, block in enumerate(before):
            stream_ND, _ = block(stream_ND, B, mask=mask, memory=state.memory, layer=number)
        return source_weights(last.source_query(stream_ND, B, mask), state.memory, len(before), last.shape.scale)


@MODELS.register("seq2seq-transformer", family="seq2seq", task="translation")
class Seq2SeqTransformer(EncoderDecoder):
    """Encoder, masked decoder, cross-attention."""

    Config = Seq2SeqTransformerConfig
    prefers = Preferences(optimizer="muon")

    def __init__(self, config: Seq2SeqTransformerConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.embedding)
        self.encoder = _stack(config, config.encoder_layers, reads_source=False)
        self.decoder = _stack(config, config.decoder_layers, reads_source=True, make_block=self.decoder_block(config))
        self.window = config.context
        for table in dict.fromkeys([self.embedding, self.source_embedding]):  # in this order: same seed, same model
            nn.init.normal_(table.weight, std=config.embedding**-0.5 if self.encoder.scale != 1.0 else 0.02)

    def decoder_block(self, config: Any) -> Callable[..., Block]:
        """What makes a block of the decoder."""
        return Block


def _stack(
    config: Seq2SeqTransformerConfig, layers: int, *, reads_source: bool, make_block: Callable[..., Block] = Block
) -> Stack:
    """One side of the model that a configuration describes, freshly initialised."""
    check_heads(config.embedding, config.heads, config.positions)
    shape = BlockShape(
        width=config.embedding,
        heads=config.heads,
        inner=config.feedforward or 4 * config.embedding,
        activation=config.activation,
        pre=config.norm == "pre",
        bias=config.bias,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
    stack = Stack(shape, layers, config.context, config.positions, reads_source=reads_source, make_block=make_block)
    initialise(stack, layers)
    return stack
