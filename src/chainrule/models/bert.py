"""bert: reads a whole text at once and tells the words that were hidden in it.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019; also in the
shapes of RoBERTa (Liu et al., 2019) and DistilBERT (Sanh et al., 2019). The encoder is layers/bert.py; what follows it
here, a layer of the same width, its activation and a norm, then the words' own vectors, is the head of all three.

It is no language model: p(word | all other words) of the places of a text do not multiply to a p(text).
Legend: B batch, S places of a text, N chosen places, V words, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.errors import ConfigError
from chainrule.layers.blocks import ACTIVATIONS
from chainrule.layers.encoders.bert import BertEncoder, BertShape
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.layers.outputs.softmax import Softmax
from chainrule.registry import MODELS
from chainrule.types import (
    Batch,
    Model,
    OutputChoice,
    Outputs,
    Preferences,
    Source,
    State,
    TextEncoder,
    Vocabulary,
    weights_below,
)


class BertConfig(BaseModel):
    """What a bert is like; the defaults are for one that is trained from scratch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["bert", "roberta", "distilbert"] = Field("bert", description="whose shape the encoder has")
    width: int = Field(256, ge=1, description="width of the states")
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    inner: int = Field(0, ge=0, description="width of the feed-forward layers; 0: four times the width")
    positions: int = Field(128, ge=1, description="rows of the table of positions: the most tokens of a text")
    types: int = Field(0, ge=0, description="rows of the table of token types; 0: there is none")
    activation: Literal["gelu", "gelu-tanh", "relu", "swish"] = "gelu"
    eps: float = Field(1e-12, gt=0, description="of the norms")
    pad: int = Field(0, ge=0, description="the token that fills up a row; roberta counts positions from behind it")
    first: int | None = Field(None, ge=0, description="the token before every text, such as [CLS]")
    mask: int | None = Field(None, ge=0, description="the token that hides a word; without it, one more than there are")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of units dropped")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="share of attention weights dropped")

    def shape(self, vocab_size: int) -> BertShape:
        """The shape of the encoder of so many words, the mask among them."""
        options = self.model_dump(exclude={"mask"})
        return BertShape(**{**options, "vocab_size": vocab_size, "inner": self.inner or 4 * self.width})


class TableSoftmax(Softmax):
    """A softmax over the first V rows of a table that may have more: a mask is read but never to be told."""

    def tie(self, weight_VD: nn.Parameter) -> None:
        self.weight_VD = weight_VD

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """-log p of the targets in nats, summed over the positions, each times its weight."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        rows_VD = self.weight_VD[: self.size]
        return linear_cross_entropy(hidden_ND, rows_VD, self.bias_V, targets_N, weights_N, label_smoothing=smoothing)

    def scores(self, hidden_ND: Tensor) -> Tensor:
        """What the softmax is taken of, NV."""
        return functional.linear(hidden_ND, self.weight_VD[: self.size], self.bias_V)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every word as NV, normalised."""
        return self.scores(hidden_ND).to(self.weight_VD.dtype).log_softmax(1)


@MODELS.register("bert", family="bert", task="masked", objective="masked")
class Bert(nn.Module, Model):
    """Tokens, some of them hidden, to states of every place, and from those to the words."""

    Config: ClassVar[type[BertConfig]] = BertConfig
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)
    reads_eos = True
    window: int
    unigram_counts: Tensor

    encodes = True

    @classmethod
    def encoder_shape(cls, config: BertConfig, vocab_size: int, eos: int) -> BertShape:
        return config.shape(vocab_size + (config.mask is None))

    @classmethod
    def encoder_weights(cls, config: BertConfig, weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
        return weights_below(weights, "encoder.")

    def __init__(self, config: BertConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__()
        _check(config, vocabulary, output)
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.mask = vocabulary.size if config.mask is None else config.mask
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        shape = config.shape(vocabulary.size + (config.mask is None))
        self.encoder = BertEncoder(shape)
        self.window, self.first, self.max_tokens = shape.source_window, shape.first, shape.window
        self.transform = nn.Linear(shape.width, shape.width)
        nn.init.normal_(self.transform.weight, std=0.02)
        nn.init.zeros_(self.transform.bias)
        self.activation = ACTIVATIONS[shape.activation]
        self.transform_norm = nn.LayerNorm(shape.width, eps=shape.eps)
        self.output = TableSoftmax(output.config, shape.width, vocabulary)
        table = self.encoder.word_table.weight
        assert isinstance(table, nn.Parameter)
        self.output.tie(table)

    @property
    def width(self) -> int:
        """Of the states."""
        return self.encoder.shape.width

    @property
    def word_table(self) -> nn.Embedding:
        table = self.encoder.word_table
        assert isinstance(table, nn.Embedding)
        return table

    @property
    def text_encoder(self) -> TextEncoder:
        return self

    # Training

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read a batch -> features of the places whose weight is above 0, one after the other, 1ND.

        Only what is asked for goes through the head: with 15% of the places chosen that spares most of its time.
        """
        tokens_BS, weights_BS = batch.inputs_BT, batch.weights_BT
        states_BSD = self.encoder(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
        chosen_ND = states_BSD.flatten(0, 1) if weights_BS is None else states_BSD[weights_BS > 0]
        return Outputs(self.head(chosen_ND)[None], None)

    def head(self, states_ND: Tensor) -> Tensor:
        """States of the last layer -> the features that words are told from, ND."""
        features_ND: Tensor = self.transform_norm(self.activation(self.transform(states_ND)))
        return features_ND

    # Use

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """Tokens as they are, and which of them are no padding -> the embeddings and every layer's states, BSD each."""
        return self.encoder.layers(tokens_BS, mask_BS)

    def logits(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens as they are, and which of them are no padding -> the scores of the words at every place, BSV."""
        features_ND = self.head(self.encoder(tokens_BS, mask_BS).flatten(0, 1))
        return self.output.scores(features_ND).view(*tokens_BS.shape, -1)

    def encode_text(self, source: Source) -> Tensor:
        """Tokens as they are, `first` included -> the last layer's state of each, BSD."""
        states_BSD: Tensor = self.encoder(*source)
        return states_BSD

    def begun(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Texts and which of their tokens are no padding, with the token before every text if there is one."""
        first = self.config.first
        if first is None:
            return tokens_BS, mask_BS
        firsts_B1 = tokens_BS.new_full((len(tokens_BS), 1), first)
        return torch.cat([firsts_B1, tokens_BS], 1), torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1)


def _check(config: BertConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
    """Refuse what does not fit together."""
    if output.layer is not Softmax:
        raise ConfigError(
            f"bert ends in a softmax over its own table of words, so the output layer '{output.layer.name}' does not "
            "fit it; leave --output out"
        )
    special: dict[str, Any] = {"mask": config.mask, "first": config.first}
    for name, token in special.items():
        if token is not None and token >= vocabulary.size:
            raise ConfigError(
                f"model.{name} is {token}, but the tokeniser has the tokens 0 to {vocabulary.size - 1}; give one of "
                "those, or leave it out"
            )
