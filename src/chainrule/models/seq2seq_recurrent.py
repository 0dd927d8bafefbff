"""Recurrent translators: one that hands on a single state, and one that attends to all states of its encoder.

seq2seq-rnn: Sutskever et al., "Sequence to Sequence Learning with Neural Networks", 2014; Cho et al., "Learning Phrase
Representations using RNN Encoder-Decoder", 2014. seq2seq-attention: Bahdanau et al., "Neural Machine Translation by
Jointly Learning to Align and Translate", 2015; Luong et al., "Effective Approaches to Attention-based Neural Machine
Translation", 2015. The equations are in `layers/cells.py` and `layers/source_attention.py`.
Legend: B batch, T time, S source time, D width of an embedding, H hidden width, E width of the encoder's states.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.base.compiling import uncompiled
from chainrule.layers.attention.source import SourceAttention, SourceStates
from chainrule.layers.dropout import drop
from chainrule.layers.recurrent.stack import Bidirectional, Recurrence, reverse
from chainrule.layers.recurrent.stack import State as RecurrentState
from chainrule.models.translator import PretrainedConfig, Translator
from chainrule.registry import MODELS
from chainrule.types import OutputChoice, Source, Vocabulary


def lengths_of(source: Source) -> Tensor | None:
    """How many tokens each row has, B; None where nothing is padding, which is quicker."""
    return None if bool(source.mask_BS.all()) else source.mask_BS.sum(1)


class Seq2SeqRnnConfig(PretrainedConfig):
    """The shape of a translator without attention."""

    cell: Literal["lstm", "gru"] = "lstm"
    hidden: int = Field(512, ge=1, description="width of each layer's state")
    layers: int = Field(2, ge=1, description="layers of the encoder, and of the decoder")
    reversed_source: bool = Field(True, description="read the source backwards, so that its first words are the last")


@MODELS.register("seq2seq-rnn", family="seq2seq", task="translation")
class Seq2SeqRnn(Translator):
    """The encoder's last state is the decoder's first."""

    Config = Seq2SeqRnnConfig
    config: Seq2SeqRnnConfig
    attends: ClassVar[bool] = False

    def __init__(self, config: Seq2SeqRnnConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.hidden)
        self.encoder, self.decoder = (
            Recurrence(config.cell, config.embedding, config.hidden, config.layers, config.dropout) for _ in range(2)
        )

    def begin(self, source: Source, *, stepping: bool) -> RecurrentState:
        lengths_B = lengths_of(source)
        features_BSD = self.embed_source(source)
        ordered_BSD = reverse(features_BSD, lengths_B) if self.config.reversed_source else features_BSD
        embedded_BSD = drop(ordered_BSD, self.config.dropout, training=self.training)
        state: RecurrentState = self.encoder(embedded_BSD, None, lengths_B)[1]
        return state

    def read(self, state: RecurrentState, tokens_BT: Tensor) -> tuple[Tensor, RecurrentState]:
        embedded_BTD = drop(self.embedding(tokens_BT), self.config.dropout, training=self.training)
        hidden_BTH, state = self.decoder(embedded_BTD, state)
        return drop(hidden_BTH, self.config.dropout, training=self.training), state


class Seq2SeqAttentionConfig(PretrainedConfig):
    """The shape of a recurrent translator with attention."""

    cell: Literal["lstm", "gru"] = "lstm"
    hidden: int = Field(512, ge=2, multiple_of=2, description="width of each layer's state, half of it a direction's")
    encoder_layers: int = Field(1, ge=1)
    decoder_layers: int = Field(1, ge=1)
    score: Literal["dot", "general", "additive"] = Field("general", description="how states are compared")
    input_feeding: bool = Field(True, description="each step also reads where the last one looked, and what it made")


class Attending(NamedTuple):
    """What the decoder remembers: the source, its layers' states, and the attentional vector to be read next."""

    memory: SourceStates
    recurrent: RecurrentState
    fed_BH: Tensor | None


@MODELS.register("seq2seq-attention", family="seq2seq", task="translation")
class Seq2SeqAttention(Translator):
    """A bidirectional encoder, and a decoder that looks at all its states at every step."""

    Config = Seq2SeqAttentionConfig
    config: Seq2SeqAttentionConfig

    def __init__(self, config: Seq2SeqAttentionConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.hidden)
        cell, width, hidden, rate = config.cell, config.embedding, config.hidden, config.dropout
        self.encoder = Bidirectional(cell, width, hidden // 2, config.encoder_layers, rate)
        self.decoder = Recurrence(cell, width, hidden, config.decoder_layers, rate)
        self.attend = SourceAttention(config.score, hidden, hidden)
        states, blocks = self.decoder.cell.states, self.decoder.cell.blocks
        self.first_state = nn.Linear(hidden, config.decoder_layers * states * hidden)
        # The part of the first layer's input weights that meets the fed vector.
        self.feed = nn.Linear(hidden, blocks * hidden, bias=False) if config.input_feeding else None

    def begin(self, source: Source, *, stepping: bool) -> Attending:
        lengths_B = lengths_of(source)
        embedded_BSD = self._drop(self.embed_source(source))
        with torch.autocast(embedded_BSD.device.type, enabled=False):
            encoded_BSE, states = self.encoder(embedded_BSD, lengths_B)
            memory = self.attend.make_memory(encoded_BSE, None if lengths_B is None else source.mask_BS)
            first = self.first_state(states[-1][0]).tanh().split(self.config.hidden, 1)
        parts = self.decoder.cell.states
        recurrent = [first[start : start + parts] for start in range(0, len(first), parts)]
        return Attending(memory, recurrent, None if self.feed is None else torch.zeros_like(first[0]))

    def read(self, state: Attending, tokens_BT: Tensor) -> tuple[Tensor, Attending]:
        features_BTH, _, state = self._look(state, tokens_BT)
        return features_BTH, state

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        return self._look(self.begin(source, stepping=False), self.shifted(tokens_BT))[1]

    def _look(self, state: Attending, tokens_BT: Tensor) -> tuple[Tensor, Tensor, Attending]:
        """Append T target tokens -> the features BTH, where each step looked BTS, and the longer state."""
        embedded_BTD = self._drop(self.embedding(tokens_BT))
        # The recurrence needs the whole precision, and so do the states that pass between it and the attention.
        with torch.autocast(embedded_BTD.device.type, enabled=False):
            if self.feed is not None:
                return self._walk(state, embedded_BTD)
            hidden_BTH, recurrent = self.decoder(embedded_BTD, state.recurrent)
            vector_BTH, weights_BTS = self.attend(hidden_BTH, state.memory)
            return self._drop(vector_BTH), weights_BTS, Attending(state.memory, recurrent, None)

    @uncompiled  # a graph would unroll the loop step by step
    def _walk(self, state: Attending, embedded_BTD: Tensor) -> tuple[Tensor, Tensor, Attending]:
        """The same with input feeding: a step reads the vector of the one before, so they come one by one."""
        memory, recurrent, fed_BH = state
        assert fed_BH is not None
        assert self.feed is not None
        feed_HG, vectors, weights = self.feed.weight.t(), [], []
        for gates_BG in self.decoder.gates(embedded_BTD).unbind(0):
            hidden_BH, recurrent = self.decoder.advance(torch.addmm(gates_BG, fed_BH, feed_HG), recurrent)
            vector_B1H, weights_B1S = self.attend(hidden_BH.unsqueeze(1), memory)
            vectors.append(self._drop(vector_B1H))
            weights.append(weights_B1S)
            fed_BH = vectors[-1].squeeze(1)
        return torch.cat(vectors, 1), torch.cat(weights, 1), Attending(memory, recurrent, fed_BH)

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.config.dropout, training=self.training)
