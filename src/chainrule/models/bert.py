"""BERT: an encoder that reads a whole text in both directions, trained to predict masked words.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019; also in the
shapes of RoBERTa (Liu et al., 2019) and DistilBERT (Sanh et al., 2019). All three have the same head:

    p(x_s | the other words) = softmax(E norm(f(W h_s + b)) + c)

with the states h of the encoder (`layers/encoders/bert.py`), the word embeddings E and the activation f. BERT is not a
language model: the product of p(word | all other words) over the positions of a text is not a probability of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.base.parameters import weights_below
from chainrule.errors import ConfigError
from chainrule.layers.blocks import ACTIVATIONS
from chainrule.layers.encoders.bert import BertEncoder, BertShape
from chainrule.layers.fused.linear import Linear
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
)


class BertConfig(BaseModel):
    """Options of a BERT; the defaults are for training from scratch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["bert", "roberta", "distilbert"] = Field("bert", description="architecture of the encoder")
    width: int = Field(256, ge=1, description="width of the states")
    layers: int = Field(4, ge=1, le=1 << 10, description="number of blocks")
    heads: int = Field(4, ge=1, description="attention heads; they must divide the width")
    inner: int = Field(0, ge=0, description="inner width of the feed-forward layers; 0: four times the width")
    positions: int = Field(128, ge=1, description="number of learned positions, which limits the tokens of a text")
    types: int = Field(0, ge=0, description="number of token types; 0: no token types")
    activation: Literal["gelu", "gelu-tanh", "relu", "swish"] = Field(
        "gelu", description="activation of the feed-forward layers"
    )
    eps: float = Field(1e-12, gt=0, description="constant that the norms add to the variance")
    pad: int = Field(0, ge=0, description="padding token; RoBERTa counts positions from the one after it")
    first: int | None = Field(None, ge=0, description="token before every text, such as [CLS] (default: none)")
    mask: int | None = Field(None, ge=0, description="mask token (default: a new token after the vocabulary)")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of all layers")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of the attention weights")
    pooler: bool = Field(
        False, description="keep a layer that pools the state of `first`, for other models; `import` reads it"
    )

    def shape(self, vocab_size: int) -> BertShape:
        """The shape of the encoder; `vocab_size` includes the mask token."""
        options = self.model_dump(exclude={"mask"})
        return BertShape(**{**options, "vocab_size": vocab_size, "inner": self.inner or 4 * self.width})


class TableSoftmax(Softmax):
    """A softmax over the first V rows of a table that may have more: a new mask token is read but never predicted."""

    def tie(self, weight_VD: nn.Parameter) -> None:
        self.weight_VD = weight_VD

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """-log p of the targets in nats, summed over the positions with their weights."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        rows_VD = self.weight_VD[: self.size]
        return linear_cross_entropy(hidden_ND, rows_VD, self.bias_V, targets_N, weights_N, label_smoothing=smoothing)

    def scores(self, hidden_ND: Tensor) -> Tensor:
        """The logits, NV."""
        return functional.linear(hidden_ND, self.weight_VD[: self.size], self.bias_V)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every word as NV, normalised."""
        return self.scores(hidden_ND).to(self.weight_VD.dtype).log_softmax(1)


@MODELS.register("bert", family="bert", task="masked", objective="masked")
class Bert(nn.Module, Model):
    """A bidirectional encoder, and a head that predicts masked words."""

    suggestions = (
        "objective.whole_word=true to mask whole words",
        "--init RUN to continue from an imported BERT",
        "then: chainrule train LABELS.tsv --model classifier --set model.pretrained=RUN",
    )

    Config: ClassVar[type[BertConfig]] = BertConfig
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)
    encodes = True
    reads_eos = True
    window: int
    unigram_counts: Tensor

    @classmethod
    def encoder_shape(cls, config: BertConfig, vocab_size: int, eos: int) -> BertShape:
        shape = config.shape(vocab_size + (config.mask is None))
        return shape.model_copy(update={"published_inputs": True})

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
        self.transform = Linear(shape.width, shape.width)
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
        """The width of the states."""
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
        """Read a batch -> the features of the M positions whose weight is above 0, 1MD.

        The head computes only these: with 15% of the positions masked, that saves most of its time.
        """
        tokens_BS, weights_BS = batch.inputs_BT, batch.weights_BT
        states_BSD = self.encoder(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
        states_MD = states_BSD.flatten(0, 1) if weights_BS is None else states_BSD[weights_BS > 0]
        return Outputs(self.head(states_MD)[None], None)

    def head(self, states_ND: Tensor) -> Tensor:
        """States of the last layer -> the features that predict words, ND."""
        features_ND: Tensor = self.transform_norm(self.activation(self.transform(states_ND)))
        return features_ND

    # Use

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """Tokens, `first` included, and a mask that is False at padding -> embeddings and states of all layers, BSD."""
        return self.encoder.layers(tokens_BS, mask_BS)

    def logits(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens, `first` included, and a mask that is False at padding -> the logits of each position, BSV."""
        features_ND = self.head(self.encoder(tokens_BS, mask_BS).flatten(0, 1))
        return self.output.scores(features_ND).view(*tokens_BS.shape, -1)

    def encode_text(self, source: Source) -> Tensor:
        """Tokens, `first` included -> the states of the last layer, BSD."""
        states_BSD: Tensor = self.encoder(*source)
        return states_BSD

    def pool(self, first_BD: Tensor) -> Tensor | None:
        """tanh(W h + b) of the states of the first tokens, BD, if the model was imported with a pooler."""
        return self.encoder.pool(first_BD)

    def prepend_first(self, tokens_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Texts and their mask, with the token `first` before every text if the model has one."""
        first = self.config.first
        if first is None:
            return tokens_BS, mask_BS
        firsts_B1 = tokens_BS.new_full((len(tokens_BS), 1), first)
        return torch.cat([firsts_B1, tokens_BS], 1), torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1)


def _check(config: BertConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
    """Raise ConfigError for options that cannot be combined."""
    if output.layer is not Softmax:
        raise ConfigError(
            f"bert predicts with a softmax over its word embeddings, so it cannot use the output layer "
            f"'{output.layer.name}'; leave --output out"
        )
    special: dict[str, Any] = {"mask": config.mask, "first": config.first}
    for name, token in special.items():
        if token is not None and token >= vocabulary.size:
            raise ConfigError(
                f"model.{name} is {token}, but the tokeniser has the tokens 0 to {vocabulary.size - 1}; give one of "
                "those, or leave it out"
            )
