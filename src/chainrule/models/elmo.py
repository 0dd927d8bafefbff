"""ELMo: a forward and a backward language model, trained together, whose layers are contextual word vectors.

    loss = -Σ_t log p(x_t | x_<t) - Σ_t log p(x_t | x_>t)

Peters et al., "Deep contextualized word representations", 2018. The two directions share embedding and output layer.
The forward direction is an ordinary language model: it is used for scoring, generation and evaluation. The backward
direction only adds its loss to the training. The recurrent stacks are in `layers/encoders/elmo.py`, the character
convolutions that read words by their spelling in `layers/encoders/char_convolution.py`.

If batches are pieces of a contiguous text, the forward direction continues from the piece before. The backward
direction starts at the end of each piece, since the next piece is unknown. In suffixes X = 2·E are both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.base.parameters import weights_below
from chainrule.errors import ConfigError
from chainrule.layers.dropout import word_mask
from chainrule.layers.encoders.char_convolution import CharacterShape, CharConvolution
from chainrule.layers.encoders.elmo import ElmoEncoder, ElmoShape
from chainrule.layers.encoders.elmo import State as DirectionState
from chainrule.models.feature_layer import LanguageModelConfig
from chainrule.models.language_model import LanguageModel, Prefix
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Source, Vocabulary


class ElmoConfig(LanguageModelConfig):
    """Options of an ELMo."""

    embedding: int = Field(200, ge=1, description="width of the token embeddings, and of each direction")
    hidden: int = Field(200, ge=1, description="units of each recurrent layer; projected to `embedding` if they differ")
    layers: int = Field(2, ge=1, le=1 << 10, description="number of recurrent layers per direction")
    characters: bool = Field(
        False, description="read words by their spelling; embedding and output are then not shared"
    )
    spelling: int = Field(
        24, ge=3, description="characters: largest number of bytes of a word, with two boundary symbols"
    )
    byte_width: int = Field(16, ge=1, description="characters: width of the byte embeddings")
    kernels: tuple[int, ...] = Field(
        (1, 2, 3, 4, 5, 6), min_length=1, description="characters: widths of the convolutions, in bytes"
    )
    filters: int = Field(25, ge=1, description="characters: number of filters of width 1; width k has k times as many")
    highway: int = Field(2, ge=0, description="characters: number of highway layers after the convolutions")

    def shape(self, vocab_size: int, first: int | None = None) -> ElmoShape:
        """The shape of the encoder; `first` is a token before every text."""
        spelling = {name: getattr(self, name) for name in CharacterShape.model_fields}
        return ElmoShape(
            vocab_size=vocab_size,
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            variational=self.variational,
            characters=CharacterShape(**spelling) if self.characters else None,
            first=first,
        )


@MODELS.register("elmo", family="elmo", task="lm")
class Elmo(LanguageModel):
    """A forward language model, and a backward one that is trained with it."""

    suggestions = (
        "model.characters=true to read words by their spelling",
        "then: chainrule train LABELS.tsv --model classifier --set model.pretrained=RUN",
    )

    Config: ClassVar[type[LanguageModelConfig]] = ElmoConfig
    config: ElmoConfig
    encodes = True

    @classmethod
    def encoder_shape(cls, config: ElmoConfig, vocab_size: int, eos: int) -> ElmoShape:
        return config.shape(vocab_size, first=eos)

    @classmethod
    def encoder_weights(cls, config: ElmoConfig, weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
        return weights_below(weights, "encoder.")

    def __init__(self, config: ElmoConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        nn.Module.__init__(self)
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.window, self.bridge = None, None
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.encoder = ElmoEncoder(config.shape(vocabulary.size), vocabulary.pieces)
        self.output = output.layer(output.config, config.embedding, vocabulary)
        table = self.encoder.word_table
        if config.tied and output.layer.tieable and isinstance(table, nn.Embedding):
            self.output.tie(table.weight)

    @property
    def word_table(self) -> nn.Embedding | None:
        """The embedding of the tokens; None: words are read by their characters."""
        table = self.encoder.word_table
        return table if isinstance(table, nn.Embedding) else None

    # The forward language model

    def start(self, batch: int) -> Prefix:
        """The empty prefix."""
        return Prefix(self.encoder.rightward.start(batch), None, None)

    def _read(self, tokens_BT: Tensor, features: DirectionState | None) -> tuple[Tensor, DirectionState]:
        layers, features = self.encoder.rightward(self._embed(tokens_BT), features)
        return self._drop(layers[-1]), features

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        embedded_BTE = self.encoder.word_table(tokens_BT)
        if self.training and self.config.word_dropout:
            embedded_BTE = embedded_BTE * word_mask(tokens_BT, self.vocab_size, self.config.word_dropout)
        return self._drop(embedded_BTE)

    # The backward language model

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTE that predict its targets, and the state after them.

        In training, the outputs also have the loss of the backward language model.
        """
        outputs = super().forward(batch, state)
        learning = self.training and torch.is_grad_enabled()
        return outputs._replace(extra=self.backward_lm_loss(batch)) if learning else outputs

    def backward_lm_loss(self, batch: Batch) -> Tensor:
        """-log p of each input given the targets from its own to the end of the row, summed, in nats.

        A row of T inputs and targets consists of T + 1 tokens. The backward language model reads the last T of them and
        predicts the first T, as many as the forward one.
        """
        self._check_spellings()
        # With scheduled sampling, inputs may be the model's predictions, except the first one.
        before_BT = torch.cat([batch.inputs_BT[:, :1], batch.targets_BT[:, :-1]], 1)
        lengths_B = None if batch.weights_BT is None else (batch.weights_BT > 0).sum(1)
        layers = self.encoder.read_leftward(self._embed(batch.targets_BT), lengths_B)
        weights_N = None if batch.weights_BT is None else batch.weights_BT.flatten()
        loss: Tensor = self.output.loss(self._drop(layers[-1]).flatten(0, 1), before_BT.flatten(), weights_N)
        return loss

    def backward_lm_log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | x_>t, eos) by the backward language model -> BT."""
        after_BT = torch.cat([tokens_BT[:, 1:], tokens_BT.new_full((len(tokens_BT), 1), self.eos)], 1)
        hidden_BTE = self.encoder.read_leftward(self._embed(after_BT))[-1]
        log_probs_N: Tensor = self.output.log_prob(hidden_BTE.flatten(0, 1), tokens_BT.flatten())
        return log_probs_N.view(tokens_BT.shape)

    def _check_spellings(self) -> None:
        table = self.encoder.word_table
        if isinstance(table, CharConvolution) and table.is_blank:
            raise ConfigError(
                "model.characters reads words by their spelling, but the vocabulary has no spellings; set "
                "Vocabulary.pieces, as `train` does"
            )

    # Contextual word vectors

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The vectors of each token: its embedding, twice, and both directions of each layer, BSX each.

        `eos` is read before the text, as in the language model.
        """
        first_B1 = tokens_BS.new_full((len(tokens_BS), 1), self.eos)
        inputs_BS = torch.cat([first_B1, tokens_BS], 1)
        layers = self.encoder.layers(inputs_BS, torch.cat([torch.ones_like(first_B1, dtype=torch.bool), mask_BS], 1))
        return [layer_BSX[:, 1:] for layer_BSX in layers]

    def encode_text(self, source: Source) -> Tensor:
        """The mean of the vectors of all layers for each token, BSX."""
        return torch.stack(self.layers(*source)).mean(0)
