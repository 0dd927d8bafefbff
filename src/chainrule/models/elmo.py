"""elmo: a language model from the left and one from the right, trained together, whose layers are words in context.

Peters et al., "Deep contextualized word representations", 2018. The two share embedding and output layer and nothing
else. The one from the left is a language model like any other, and is what is scored, generated from and measured; the
one from the right adds its loss to the training. The recurrent stacks are in `layers/elmo.py`, words read by their
spelling in `layers/char_convolution.py`.

A batch is pieces of text. The direction from the left reads on where the last piece ended, if the batches are those of
a stream; the one from the right begins at the end of each piece, since what comes after it is not known yet.
Legend: B batch, T time, S places of a text, V vocabulary, E width of a direction, P = 2·E.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.dropout import word_mask
from chainrule.layers.encoders.char_convolution import CharacterShape, CharConvolution
from chainrule.layers.encoders.elmo import ElmoEncoder, ElmoShape
from chainrule.layers.encoders.elmo import State as DirectionState
from chainrule.models.language_model import LanguageModel, LanguageModelConfig, Prefix
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Source, Vocabulary, weights_below


class ElmoConfig(LanguageModelConfig):
    """The shape of an elmo."""

    embedding: int = Field(200, ge=1, description="width of a token's vector, and of what each direction gives")
    hidden: int = Field(200, ge=1, description="width of the recurrent states; where it is another, they are projected")
    layers: int = Field(2, ge=1, description="recurrent layers of each direction")
    characters: bool = Field(False, description="read words by their spelling; the output layer has its own table then")
    spelling: int = Field(24, ge=3, description="characters: most bytes of a word, its two ends counted")
    byte_width: int = Field(16, ge=1, description="characters: width of a byte's vector")
    kernels: tuple[int, ...] = Field(
        (1, 2, 3, 4, 5, 6), min_length=1, description="characters: how many bytes filters see"
    )
    filters: int = Field(25, ge=1, description="characters: filters that see one byte; k times that see k")
    highway: int = Field(2, ge=0, description="characters: highway layers after the filters")

    def shape(self, vocab_size: int, first: int | None = None) -> ElmoShape:
        """The shape of the encoder of so many words, with a token before every text if it is told."""
        spelled = {name: getattr(self, name) for name in CharacterShape.model_fields}
        return ElmoShape(
            vocab_size=vocab_size,
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            variational=self.variational,
            characters=CharacterShape(**spelled) if self.characters else None,
            first=first,
        )


@MODELS.register("elmo", family="elmo", task="lm")
class Elmo(LanguageModel):
    """p(x) = Π p(x_t | x_<t), and beside it Π p(x_t | x_>t)."""

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
        """The embedding of the tokens; None where words are read by their characters."""
        table = self.encoder.word_table
        return table if isinstance(table, nn.Embedding) else None

    # The language model from the left

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

    # The one from the right

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTE to predict its targets from, and the state to carry on with.

        In training, the loss of the direction from the right comes beside.
        """
        outputs = super().forward(batch, state)
        learning = self.training and torch.is_grad_enabled()
        return outputs._replace(extra=self.loss_from_the_right(batch)) if learning else outputs

    def loss_from_the_right(self, batch: Batch) -> Tensor:
        """-log p of each input given the targets from the row's end back to its own, summed, in nats.

        A row of T inputs and targets is T + 1 tokens of the text; from the right the last of them is the first that is
        read and the first the last that is predicted: as many predictions as from the left.
        """
        self._check_spellings()
        # What was read may be the model's own words (scheduled sampling); the first is always that of the text.
        before_BT = torch.cat([batch.inputs_BT[:, :1], batch.targets_BT[:, :-1]], 1)
        lengths_B = None if batch.weights_BT is None else (batch.weights_BT > 0).sum(1)
        layers = self.encoder.read_leftward(self._embed(batch.targets_BT), lengths_B)
        weights_N = None if batch.weights_BT is None else batch.weights_BT.flatten()
        loss: Tensor = self.output.loss(self._drop(layers[-1]).flatten(0, 1), before_BT.flatten(), weights_N)
        return loss

    def log_probs_from_the_right(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | x_>t, eos) -> BT: what the other direction makes of texts, `eos` after each."""
        after_BT = torch.cat([tokens_BT[:, 1:], tokens_BT.new_full((len(tokens_BT), 1), self.eos)], 1)
        hidden_BTE = self.encoder.read_leftward(self._embed(after_BT))[-1]
        log_probs_N: Tensor = self.output.log_prob(hidden_BTE.flatten(0, 1), tokens_BT.flatten())
        return log_probs_N.view(tokens_BT.shape)

    def _check_spellings(self) -> None:
        table = self.encoder.word_table
        if isinstance(table, CharConvolution) and table.is_blank:
            raise ConfigError(
                "model.characters reads words by their spelling, but no spelling is known; give the vocabulary its "
                "pieces, as `train` does"
            )

    # Words in context

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The vectors of each token: its embedding, twice, and both directions of each layer, BSP each.

        `eos` is read before the text, as the language model does.
        """
        first_B1 = tokens_BS.new_full((len(tokens_BS), 1), self.eos)
        begun_BS = torch.cat([first_B1, tokens_BS], 1)
        layers = self.encoder.layers(begun_BS, torch.cat([torch.ones_like(first_B1, dtype=torch.bool), mask_BS], 1))
        return [layer_BSP[:, 1:] for layer_BSP in layers]

    def encode_text(self, source: Source) -> Tensor:
        """The mean of the layers' vectors of each token of a text, BSP."""
        return torch.stack(self.layers(*source)).mean(0)
