"""A classifier: an encoder reads a text, its states are pooled into one vector, and an MLP predicts the labels.

    h = encoder(x)        v = Σ_s α_s h_s        p(label | x) = softmax(W₂ gelu(W₁ v + b₁) + b₂)

If a text may have any number of labels, each has its own logistic function instead of the softmax. The encoder is
trained from scratch, or it is a pretrained one, frozen or fine-tuned.

The texts of a pair (question and answer, premise and hypothesis) are concatenated, with token types if the encoder has
them, and a learned vector is added to the states of the second.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.base.grammar import plural
from chainrule.errors import ConfigError
from chainrule.layers.dropout import Dropout
from chainrule.layers.encoders.build import EncoderName, EncoderShape, shape_of
from chainrule.layers.encoders.pooling import PoolingKind, make_pooling
from chainrule.layers.encoders.pretrained import EncodedText, PretrainedFeatures
from chainrule.layers.fused.linear import Linear
from chainrule.models.pretrained_encoder import PretrainedFields, make_pretrained
from chainrule.registry import ENCODERS, MODELS, OUTPUTS
from chainrule.types import Batch, Model, OutputChoice, Outputs, State, Vocabulary


class LabelConfig(PretrainedFields):
    """Options of classifiers and taggers."""

    encoder: EncoderName = Field("bag", description="encoder of the text, trained from scratch")
    embedding: int = Field(128, ge=1, description="width of an encoder trained from scratch")
    layers: int = Field(1, ge=1, le=1 << 10, description="layers of an encoder trained from scratch, if it has layers")
    heads: int = Field(4, ge=1, description="heads of an encoder trained from scratch, if it has attention")
    positions: int = Field(
        512, ge=2, description="largest number of tokens of a text, for encoders with a limit (bert, transformer)"
    )
    dropout: float = Field(
        0.3, ge=0, lt=1, description="dropout rate of an encoder trained from scratch and of the MLP"
    )
    hidden: int = Field(128, ge=1, description="units of the hidden layer of the MLP")
    labels: tuple[str, ...] = Field((), description="names of the labels; `train` takes them from the data")

    @property
    def context(self) -> int | None:
        """The largest number of tokens of a text; None: any number."""
        if self.pretrained_shape is not None:
            return self.pretrained_shape.source_window
        return self.positions if ENCODERS.get(self.encoder).make.bounded else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pretrained is not None and "encoder" in self.model_fields_set:
            raise ConfigError(
                f"got both model.encoder = {self.encoder} (trained from scratch) and model.pretrained = "
                f"{self.pretrained}; give one of the two"
            )
        return self


class LabelModel(nn.Module, Model):
    """An encoder and the names of the labels. Subclasses compute scores of the labels from the encoder's states."""

    Config: ClassVar[type[LabelConfig]] = LabelConfig
    unigram_counts: Tensor

    def __init__(self, config: LabelConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__()
        _check(config, output)
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.pretrained = make_pretrained(
            config,
            vocabulary.size,
            None,
            side="text",
            tokenizer="--tokenizer",
            embedding=config.token_embedding,
        )
        self.features = None
        if self.pretrained is None:
            self.features = PretrainedFeatures(_scratch_shape(config, vocabulary.size), None, tuned=True)

    @property
    def reader(self) -> PretrainedFeatures:
        """The module that computes the states of tokens, pretrained or not."""
        reader = self.features if self.pretrained is None else self.pretrained
        assert reader is not None
        return reader

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return [] if self.pretrained is None else list(self.pretrained.encoder.parameters())

    @property
    def word_table(self) -> nn.Embedding | None:
        """The embedding of an encoder that is trained from scratch."""
        table = None if self.features is None else self.features.encoder.word_table
        return table if isinstance(table, nn.Embedding) else None

    def train(self, mode: bool = True) -> Self:
        """Training reads the same texts repeatedly, so it caches the states of a frozen encoder."""
        if mode:
            self.reader.cache_states()
        return super().train(mode)

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the labels of each example, B."""
        raise TypeError(f"{type(self).__name__} must define negative_log_probs")

    def row_weights(self, batch: Batch) -> Tensor | None:
        """The weight of each example in the training loss, B; None: all weigh the same."""
        return None

    def predict(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The predicted labels of each example, in the form of the targets of a batch."""
        raise TypeError(f"{type(self).__name__} must define predict")

    def make_network(self) -> nn.Sequential:
        """A new MLP from states to scores of the labels."""
        config = self.config
        return nn.Sequential(
            Linear(self.reader.width, config.hidden),
            nn.GELU(),
            Dropout(config.dropout),
            Linear(config.hidden, len(config.labels)),
        )


def _check(config: LabelConfig, output: OutputChoice) -> None:
    if output.layer is not OUTPUTS.get("softmax").make:
        raise ConfigError(
            "classifiers and taggers have their own output layer, so none can be chosen; leave --output out"
        )
    if len(config.labels) < 2:
        raise ConfigError(
            f"model.labels has {plural(len(config.labels), 'name')}, expected at least 2; `train` takes them from the "
            "data"
        )


def _scratch_shape(config: LabelConfig, vocab_size: int) -> EncoderShape:
    """The shape of an encoder that is trained from scratch."""
    return shape_of(
        config.encoder,
        vocab_size,
        width=config.embedding,
        layers=config.layers,
        heads=config.heads,
        dropout=config.dropout,
        positions=config.positions,
    )


class ClassifierConfig(LabelConfig):
    """Options of a classifier."""

    pooling: PoolingKind = Field(
        "attention", description="pooling of the states: attention, attention-from-pooled, mean, max or first"
    )
    multi_label: bool = Field(
        False, description="a text may have any number of labels; `train` takes it from JSON data"
    )
    pairs: bool = Field(False, description="examples are pairs of texts; `train` takes it from the data")
    class_weight: Literal["balanced"] | dict[str, float] | None = Field(
        None,
        description="weight of each label in the training loss: a table, or balanced (inversely proportional to the "
        "frequency of the label)",
    )


@MODELS.register("classifier", family="classifier", task="labels", objective="labels")
class Classifier(LabelModel):
    """p(label | text)."""

    suggestions = (
        "model.encoder=lstm, bert or transformer instead of a bag of words",
        "model.pretrained=RUN|FOLDER|PACKAGE, with model.tuned=true to fine-tune it",
        "training.select=accuracy with training.patience=3",
    )

    Config = ClassifierConfig
    config: ClassifierConfig
    class_weights: Tensor | None

    def __init__(self, config: ClassifierConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.second_D = nn.Parameter(torch.zeros(self.reader.width)) if config.pairs else None
        self.pooling = make_pooling(config.pooling, self.reader.width, self.reader.encoder.shape.width)
        self.network = self.make_network()
        table = config.class_weight if isinstance(config.class_weight, dict) else None
        weights_C = None if table is None else torch.tensor([table.get(label, 1.0) for label in config.labels])
        self.register_buffer("class_weights", weights_C, persistent=False)

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read the texts of a batch -> the scores of the labels, as features of one position, B1C."""
        encoded = self.encode(batch)
        vector_BD = self.pooling(encoded.states_BSD, encoded.mask_BS, encoded.pooled_BE)
        return Outputs(self.network(vector_BD)[:, None], None)

    def attention(self, batch: Batch) -> Tensor | None:
        """The weight of each state in the vector of its text, BS; None: the pooling has no attention."""
        encoded = self.encode(batch)
        return self.pooling.weights(encoded.states_BSD, encoded.mask_BS, encoded.pooled_BE)

    def encode(self, batch: Batch) -> EncodedText:
        """The texts by the encoder, with a learned vector added to the states of the second text of a pair."""
        assert batch.source is not None
        encoded = self.reader.encode(batch.source, batch.parts_BS)
        if self.second_D is None:
            return encoded
        assert encoded.parts_BS is not None
        return encoded._replace(states_BSD=encoded.states_BSD + encoded.parts_BS[:, :, None] * self.second_D)

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the label of each text, or of the presence or absence of all labels, B."""
        scores_BC = outputs.hidden_BTD[:, 0].float()
        if not self.config.multi_label:
            return F.cross_entropy(scores_BC, batch.targets_BT[:, 0], reduction="none")
        targets_BC = batch.targets_BT.to(scores_BC.dtype)
        return F.binary_cross_entropy_with_logits(scores_BC, targets_BC, reduction="none").sum(1)

    def row_weights(self, batch: Batch) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights[batch.targets_BT[:, 0]]

    def probabilities(self, outputs: Outputs) -> Tensor:
        """p of each label, BC; they sum to one, unless a text may have several labels."""
        scores_BC = outputs.hidden_BTD[:, 0].float()
        return scores_BC.sigmoid() if self.config.multi_label else scores_BC.softmax(1)

    def predict(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The most probable label of each text, B1, or whether each label is predicted, BC."""
        probabilities_BC = self.probabilities(outputs)
        if self.config.multi_label:
            return (probabilities_BC > 0.5).to(torch.int64)
        return probabilities_BC.argmax(1, keepdim=True)
