"""The Transformer for translation: an encoder, a causal decoder, and attention from the decoder to the encoder.

Vaswani et al., "Attention Is All You Need", 2017. Each block of the decoder computes

    y ← y + attention(norm(y))        y ← y + source attention(norm(y), encoder(x))        y ← y + feedforward(norm(y))

with the positions and norms of the language model in `transformer.py`. Encoder and decoder may differ in depth: a deep
encoder with a shallow decoder translates faster (Kasai et al., "Deep Encoder, Shallow Decoder", 2021).

A pretrained encoder takes the place of the source embedding: its projected states, with positions, are the input of the
encoder's blocks, of which there are none unless `encoder_layers` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.engines.decode.stack import StackState
from chainrule.engines.decode.weights import StackWeights
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.source_memory import SourceMemory, source_mask, source_weights
from chainrule.layers.blocks import Block, BlockShape, check_heads
from chainrule.layers.compiled import stack_weights
from chainrule.layers.dropout import drop
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.models.stack_decoder import StackDecoder, check_length
from chainrule.models.translator import EncoderDecoderConfig
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Preferences, Source, State, TextEncoder, Vocabulary


class Seq2SeqTransformerConfig(EncoderDecoderConfig):
    """Options of a Transformer translator."""

    decoder_layers: int = Field(3, ge=1, le=1 << 10, description="number of decoder blocks")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    feedforward: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of the attention weights")
    # Rotary positions enter self-attention only: attention to the source would not depend on positions.
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="position encoding: rotary, sinusoidal, learned or none"
    )
    norm: Literal["pre", "post"] = Field(
        "pre", description="norms before each layer (pre) or after its residual sum (post)"
    )
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu", "swish"] = Field(
        "relu2", description="activation of the feed-forward layers"
    )
    bias: bool = Field(False, description="biases in the linear layers and norms")


class DecoderState(NamedTuple):
    """The source and the past of the decoder, where torch computes it."""

    memory: SourceMemory
    caches: list[State] | None  # one per block; None: all positions are read in one pass
    length: int = 0  # positions read


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
        """Embeddings with the positions that follow the first `before` ones -> ND."""
        check_length(before + embedded_BTD.shape[1], self.window)
        return drop(self.add_positions(embedded_BTD, before), self.dropout, training=self.training).flatten(0, 1)

    def distance_terms(self) -> Tensor | None:
        """What is added to the scores of self-attention by head and distance, HL; None: nothing."""
        return None

    def attention_mask(self, new: int, before: int, real_B11S: Tensor | None = None) -> Tensor | None:
        """The mask for the blocks when `new` positions follow `before` others; None: the blocks need no mask.

        `real_B11S` is False at padding.
        """
        return real_B11S

    def finish(self, stream_ND: Tensor) -> Tensor:
        """The stream after the last block -> the features of this side, ND."""
        features_ND: Tensor = self.norm(stream_ND)
        return features_ND


class EncoderDecoder(StackDecoder):
    """A stack that reads the source, and one that predicts the target and attends to it. Subclasses create both."""

    encoder: Stack
    decoder: Stack
    # As a text encoder:
    first = None
    reads_eos = True

    @property
    def max_tokens(self) -> int | None:
        return self.window

    @property
    def text_encoder(self) -> TextEncoder:
        return self

    def encode(self, source: Source) -> Tensor:
        """The features of each source token, BSD."""
        embedded_BSD = self.embed_source(source)
        B, S, _ = embedded_BSD.shape
        stream_ND = self.encoder.embed(embedded_BSD, 0)
        mask = self.encoder.attention_mask(S, 0, source_mask(source.mask_BS))
        stream_ND, _ = self.encoder.run_blocks(stream_ND, B, mask=mask, causal=False)
        return self.encoder.finish(stream_ND).view(embedded_BSD.shape)

    def encode_text(self, source: Source) -> Tensor:
        return self.encode(source)

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor] | None:
        """None: the layers of the encoder cannot be read separately."""
        return None

    def begin(self, source: Source, *, stepping: bool) -> DecoderState | StackState:
        stack = self.decoder_engine() if stepping else None
        if stack is not None:
            sources = stack.sources(self._encode_real(source).numpy(), source.mask_BS.sum(1).numpy())
            return stack.start(len(source.mask_BS), sources)
        encoded_BSD = self.encode(source)
        pairs = [block.make_memory(encoded_BSD) for block in self.decoder.block_list]
        memory = SourceMemory(pairs, source_mask(source.mask_BS))
        if not stepping:
            return DecoderState(memory, None)
        return DecoderState(memory, self.decoder.start_caches(len(encoded_BSD), self.decoder.window, encoded_BSD))

    def compiled_decoder(self) -> StackWeights | None:
        if self.bridge is not None:
            return None
        decoder = self.decoder
        return stack_weights(decoder, self.embedding, decoder.window, self.output.compiled, decoder.distance_terms())

    def compiled_encoder(self) -> StackWeights | None:
        """The encoder for the engine, which knows no relative positions in both directions."""
        encoder = self.encoder
        if self.pretrained is not None or encoder.distance_terms() is not None:
            return None
        return stack_weights(encoder, self.source_embedding, encoder.window, None, causal=False)

    def _encode_real(self, source: Source) -> Tensor:
        """The features of the source tokens that are not padding, row after row, ND; by the engine, where it can."""
        stack = self.encoder_engine()
        if stack is None:
            return self.encode(source)[source.mask_BS]
        check_length(source.tokens_BS.shape[1], self.encoder.window)
        token_N, count_B = source.tokens_BS[source.mask_BS], source.mask_BS.sum(1)
        return torch.from_numpy(stack.encode(token_N.numpy(), count_B.numpy()))

    def read_layers(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        embedded_BTD = self.embedding(tokens_BT)
        (B, T), before = tokens_BT.shape, state.length
        stream_ND = self.decoder.embed(embedded_BTD, before)
        mask = self.decoder.attention_mask(T, before)
        stream_ND, caches = self.decoder.run_blocks(stream_ND, B, state.caches, mask=mask, memory=state.memory)
        hidden_BTD = self.decoder.finish(stream_ND).view(embedded_BTD.shape)
        return hidden_BTD, DecoderState(state.memory, caches if state.caches else None, before + T)

    def rewindable(self, state: DecoderState | StackState) -> int | None:
        if isinstance(state, StackState):
            return super().rewindable(state)
        if state.caches is None or not all(isinstance(cache, KeyValueCache) for cache in state.caches):
            return None
        return self.decoder.window - state.length

    def rewind(self, state: DecoderState | StackState, count: int) -> DecoderState | StackState:
        if isinstance(state, StackState):
            return state.remove_last(count)
        assert state.caches is not None
        return DecoderState(state.memory, [cache.remove_last(count) for cache in state.caches], state.length - count)

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """The attention weights of the last layer, averaged over its heads, BTS."""
        state, (B, T) = self.begin(source, stepping=False), tokens_BT.shape
        assert isinstance(state, DecoderState)
        stream_ND = self.decoder.embed(self.embedding(self.shift_right(tokens_BT)), 0)
        mask = self.decoder.attention_mask(T, 0)
        *before, last = self.decoder.block_list
        for number, block in enumerate(before):
            stream_ND, _ = block(stream_ND, B, mask=mask, memory=state.memory, layer=number)
        return source_weights(last.source_query(stream_ND, B, mask), state.memory, len(before), last.shape.scale)


@MODELS.register("seq2seq-transformer", family="seq2seq", task="translation")
class Seq2SeqTransformer(EncoderDecoder):
    """Encoder, causal decoder, cross-attention."""

    suggestions: ClassVar[tuple[str, ...]] = (
        "model.encoder_layers=6 with model.decoder_layers=2: nearly the same quality, faster translation",
        "--objective minimum-risk after training, with --init RUN, to optimise BLEU",
        "model.pretrained=FOLDER to read the source with a BERT",
    )

    Config = Seq2SeqTransformerConfig
    config: Seq2SeqTransformerConfig
    prefers = Preferences(optimizer="muon")

    def __init__(self, config: Seq2SeqTransformerConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.embedding)
        # The states of a pretrained encoder are not scaled: unlike embeddings, they are as large as the positions.
        scale = None if self.pretrained is None else 1.0
        self.encoder = _make_stack(config, config.encoder_layers, Block, reads_source=False, scale=scale)
        self.decoder = _make_stack(config, config.decoder_layers, self.make_decoder_block, reads_source=True)
        self.window = config.context
        for table in self.own_tables:
            nn.init.normal_(table.weight, std=config.embedding**-0.5 if self.decoder.scale != 1.0 else 0.02)

    def make_decoder_block(
        self, shape: BlockShape, rotary: Rotary | None = None, *, reads_source: bool = False
    ) -> Block:
        """A new block of the decoder."""
        return Block(shape, rotary, reads_source=reads_source)


def _make_stack(
    config: Seq2SeqTransformerConfig,
    layers: int,
    make_block: Callable[..., Block],
    *,
    reads_source: bool,
    scale: float | None = None,
) -> Stack:
    """One side of the model, freshly initialised."""
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
    stack = Stack(
        shape,
        layers,
        config.context,
        config.positions,
        reads_source=reads_source,
        scale=scale,
        make_block=make_block,
    )
    initialise(stack, layers)
    return stack
