"""Recurrent translators: without attention, and with attention to all states of the encoder.

seq2seq-rnn: the last state of the encoder is the first state of the decoder. Sutskever et al., "Sequence to Sequence
Learning with Neural Networks", 2014; Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.

seq2seq-attention: the decoder attends to the states e_s of a bidirectional encoder,

    a_s = softmax_s score(h_t, e_s)        h~_t = tanh(W [Σ a_s e_s; h_t])        features = h~_t

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015; Luong et al., "Effective
Approaches to Attention-based Neural Machine Translation", 2015. With input feeding, step t also reads h~_{t-1}.

The cells are in `layers/recurrent/cells.py`, the scores in `layers/attention/source.py`. In evaluation mode and without
gradients, the decoding engine computes the steps of the decoder (`engines/decode/recurrent.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from chainrule.base.choosing import TokenChooser
from chainrule.base.compiling import uncompiled
from chainrule.engines.decode.recurrent import NO_MEMORY, RecurrentState
from chainrule.engines.decode.recurrent_weights import AttentionWeights, RecurrentWeights
from chainrule.layers.attention.source import SourceAttention, SourceStates
from chainrule.layers.compiled import as_array, choose_continuations, linear_weights, predict
from chainrule.layers.compiled_recurrence import attention_weights, recurrence_weights, source_memory
from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear
from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.layers.recurrent.stack import Recurrence, reverse
from chainrule.layers.recurrent.stack import State as LayerStates
from chainrule.models.translator import PretrainedConfig, Translator
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Source, State, Vocabulary


def row_lengths(source: Source) -> Tensor | None:
    """The number of tokens of each row, B; None: there is no padding, which is faster to process."""
    return None if bool(source.mask_BS.all()) else source.mask_BS.sum(1)


class RecurrentTranslator(Translator, TokenChooser):
    """A translator with a recurrent decoder."""

    decoder: Recurrence

    def attention_parameters(self) -> AttentionWeights | None:
        """The attention of the decoder in the form of the engine; None: it does not attend to the source."""
        return None

    def _compiled(self) -> RecurrentWeights:
        bridge, output = None if self.bridge is None else linear_weights(self.bridge), self.output.compiled
        attention = self.attention_parameters()
        return recurrence_weights(self.decoder, self.embedding, attention=attention, bridge=bridge, output=output)

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if isinstance(state, RecurrentState) and state.predicts:
            return predict(state, tokens_BT, "last")
        return super().prefill(state, tokens_BT)

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if isinstance(state, RecurrentState) and state.predicts:
            return predict(state, tokens_BT, "all")
        return super().extend(state, tokens_BT)

    def best_continuations(
        self, state: State, token_R: Tensor, log_prob_AW: Tensor, count: int
    ) -> tuple[Tensor, Tensor, State] | None:
        """The best continuations of a beam, where the engine computes them."""
        if not (isinstance(state, RecurrentState) and state.predicts):
            return None
        return choose_continuations(state, token_R, log_prob_AW, count)

    def read(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if not isinstance(state, RecurrentState):
            return self.read_layers(state, tokens_BT)
        features_ND, after = state.features(tokens_BT.numpy(), bridged=False)
        return torch.from_numpy(features_ND).view(*tokens_BT.shape, -1), after

    def read_layers(self, state: Any, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """`read` by torch; subclasses define it."""
        raise TypeError(f"{type(self).__name__} must define read_layers")


class Seq2SeqRnnConfig(PretrainedConfig):
    """Options of a recurrent translator without attention."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="recurrent cell of encoder and decoder")
    hidden: int = Field(512, ge=1, description="units of each layer")
    layers: int = Field(2, ge=1, le=1 << 10, description="number of layers of the encoder, and of the decoder")
    reversed_source: bool = Field(True, description="read the source from its last token to its first")


@MODELS.register("seq2seq-rnn", family="seq2seq", task="translation")
class Seq2SeqRnn(RecurrentTranslator):
    """The last state of the encoder is the first state of the decoder."""

    suggestions = (
        "model.cell=gru for speed",
        "chainrule compare SRC TGT --models seq2seq-rnn,seq2seq-attention to see what attention is worth",
    )

    Config = Seq2SeqRnnConfig
    config: Seq2SeqRnnConfig
    attends: ClassVar[bool] = False

    def __init__(self, config: Seq2SeqRnnConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.hidden)
        self.encoder, self.decoder = (
            Recurrence(config.cell, config.embedding, config.hidden, config.layers, config.dropout) for _ in range(2)
        )

    def begin(self, source: Source, *, stepping: bool) -> LayerStates | RecurrentState:
        lengths_B = row_lengths(source)
        features_BSD = self.embed_source(source)
        ordered_BSD = reverse(features_BSD, lengths_B) if self.config.reversed_source else features_BSD
        embedded_BSD = drop(ordered_BSD, self.config.dropout, training=self.training)
        state: LayerStates = self.encoder(embedded_BSD, None, lengths_B)[1]
        engine = self._packed.engine(self, self.precision, self._compiled) if stepping else None
        if engine is None:
            return state
        return engine.start_from([as_array(part_BU) for layer in state for part_BU in layer], NO_MEMORY)

    def read_layers(self, state: LayerStates, tokens_BT: Tensor) -> tuple[Tensor, LayerStates]:
        embedded_BTD = drop(self.embedding(tokens_BT), self.config.dropout, training=self.training)
        hidden_BTU, state = self.decoder(embedded_BTD, state)
        return drop(hidden_BTU, self.config.dropout, training=self.training), state


class Seq2SeqAttentionConfig(PretrainedConfig):
    """Options of a recurrent translator with attention."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="recurrent cell of encoder and decoder")
    hidden: int = Field(512, ge=2, multiple_of=2, description="units of each layer; each encoder direction has half")
    encoder_layers: int = Field(1, ge=1, le=1 << 10, description="number of encoder layers")
    decoder_layers: int = Field(1, ge=1, le=1 << 10, description="number of decoder layers")
    score: Literal["dot", "general", "additive", "location"] = Field("general", description="attention score")
    input_feeding: bool = Field(True, description="each step also reads the attentional vector of the step before")


class DecoderState(NamedTuple):
    """The source, the states of the layers, and the attentional vector that the next step reads."""

    memory: SourceStates
    recurrent: LayerStates
    fed_BU: Tensor | None  # None: without input feeding


@MODELS.register("seq2seq-attention", family="seq2seq", task="translation")
class Seq2SeqAttention(RecurrentTranslator):
    """A bidirectional encoder, and a decoder that attends to all its states at every step."""

    suggestions = (
        "model.score=additive or general instead of dot",
        "model.input_feeding=false for faster training",
        "chainrule translate RUN --attention FILE to see the alignment",
    )

    Config = Seq2SeqAttentionConfig
    config: Seq2SeqAttentionConfig

    def __init__(self, config: Seq2SeqAttentionConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.hidden)
        cell, width, hidden, rate = config.cell, config.embedding, config.hidden, config.dropout
        self.encoder = Bidirectional(cell, width, hidden // 2, config.encoder_layers, rate)
        self.decoder = Recurrence(cell, width, hidden, config.decoder_layers, rate)
        self.attend = SourceAttention(config.score, hidden, hidden)
        states, blocks = self.decoder.cell.states, self.decoder.cell.blocks
        self.first_state = Linear(hidden, config.decoder_layers * states * hidden)
        # The input weights of the first layer for the fed vector.
        self.feed = Linear(hidden, blocks * hidden, bias=False) if config.input_feeding else None

    def attention_parameters(self) -> AttentionWeights:
        return attention_weights(self.attend, feed=self.feed)

    def begin(self, source: Source, *, stepping: bool) -> DecoderState | RecurrentState:
        lengths_B = row_lengths(source)
        embedded_BSD = self._drop(self.embed_source(source))
        with torch.autocast(embedded_BSD.device.type, enabled=False):
            encoded_BSE, states = self.encoder(embedded_BSD, lengths_B)
            memory = self.attend.make_memory(encoded_BSE, None if lengths_B is None else source.mask_BS)
            first = self.first_state(states[-1][0]).tanh().split(self.config.hidden, 1)
        engine = self._packed.engine(self, self.precision, self._compiled) if stepping else None
        if engine is not None:
            return engine.start_from(list(map(as_array, first)), source_memory(engine, memory, source.mask_BS))
        parts = self.decoder.cell.states
        recurrent = [first[start : start + parts] for start in range(0, len(first), parts)]
        return DecoderState(memory, recurrent, None if self.feed is None else torch.zeros_like(first[0]))

    def read_layers(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        features_BTU, _, state = self._read_with_weights(state, tokens_BT)
        return features_BTU, state

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        state = self.begin(source, stepping=False)
        assert isinstance(state, DecoderState)
        return self._read_with_weights(state, self.shift_right(tokens_BT))[1]

    def _read_with_weights(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, Tensor, DecoderState]:
        """Append T target tokens -> the features BTU, the attention weights BTS, and the new state."""
        embedded_BTD = self._drop(self.embedding(tokens_BT))
        # The recurrence needs full precision, and so do the states that pass between it and the attention.
        with torch.autocast(embedded_BTD.device.type, enabled=False):
            if self.feed is not None:
                return self._read_step_by_step(state, embedded_BTD)
            hidden_BTU, recurrent = self.decoder(embedded_BTD, state.recurrent)
            vector_BTU, weights_BTS = self.attend(hidden_BTU, state.memory)
            return self._drop(vector_BTU), weights_BTS, DecoderState(state.memory, recurrent, None)

    @uncompiled  # a graph would unroll the loop
    def _read_step_by_step(self, state: DecoderState, embedded_BTD: Tensor) -> tuple[Tensor, Tensor, DecoderState]:
        """`_read_with_weights` with input feeding: each step needs the vector of the step before."""
        memory, recurrent, fed_BU = state
        assert fed_BU is not None
        assert self.feed is not None
        feed_UG, vectors, weights = self.feed.weight.t(), [], []
        for gates_BG in self.decoder.gates(embedded_BTD).unbind(0):
            hidden_BU, recurrent = self.decoder.advance(torch.addmm(gates_BG, fed_BU, feed_UG), recurrent)
            vector_B1U, weights_B1S = self.attend(hidden_BU.unsqueeze(1), memory)
            vectors.append(self._drop(vector_B1U))
            weights.append(weights_B1S)
            fed_BU = vectors[-1].squeeze(1)
        return torch.cat(vectors, 1), torch.cat(weights, 1), DecoderState(memory, recurrent, fed_BU)

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.config.dropout, training=self.training)
