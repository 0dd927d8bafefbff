"""A classifier: an encoder reads a text, its states are pooled into one vector, and a small network tells the labels.

    h = encoder(x),   v = Σ_s α_s h_s,   p(label | x) = softmax(W₂ gelu(W₁ v + b₁) + b₂)

or, where a text may have any number of labels, the logistic function of each score by itself. Seed 001, section 4.2:
an encoder, attention over its states, a multi-layer perceptron. The encoder is trained from scratch, or was trained
before and stays as it is or is tuned with the rest.

Of a pair (question and answer, premise and hypothesis) both texts are read one behind the other, and a learned vector
is added to the states of the second.

Legend: B batch, S tokens of a text, D width of the states, L labels.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError
from chainrule.layers.encoders.build import EncoderName, EncoderShape, shape_of
from chainrule.layers.encoders.frozen_cache import FrozenStateCache
from chainrule.layers.encoders.pooling import PoolingKind, make_pooling
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.registry import ENCODERS, MODELS, OUTPUTS
from chainrule.types import Batch, Model, OutputChoice, Outputs, Source, State, Vocabulary


class LabelConfig(BaseModel):
    """What classifiers and taggers share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: EncoderName = Field("bag", description="encoder of the text, trained from scratch")
    embedding: int = Field(128, ge=1, description="width of that encoder")
    layers: int = Field(1, ge=1, description="its layers, where it has some")
    heads: int = Field(4, ge=1, description="its heads, where it attends")
    positions: int = Field(
        512, ge=2, description="the most tokens that it reads, where it is bounded: bert, transformer"
    )
    dropout: float = Field(0.3, ge=0, lt=1, description="share of units dropped, in that encoder and in the network")
    hidden: int = Field(128, ge=1, description="width of the network's hidden layer")
    pretrained: str | None = Field(
        None, description="an encoder that was trained before, in its place: a folder, a run, or a package"
    )
    tuned: bool = Field(False, description="train that encoder with the rest; false: it stays as it is")
    pretrained_shape: EncoderShape | None = Field(None, description="what that encoder is like, as its folder tells")
    labels: tuple[str, ...] = Field((), description="what can be told; taken from the training data")

    @property
    def context(self) -> int | None:
        """The most tokens that can be read of a text; None: any number."""
        if self.pretrained_shape is not None:
            return self.pretrained_shape.source_window
        return self.positions if ENCODERS.get(self.encoder).make.bounded else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("tuned", "pretrained_shape"):
            if getattr(self, name) and self.pretrained is None:
                raise ConfigError(f"model.{name} is of a pretrained encoder; give one with model.pretrained")
        if self.pretrained is not None and "encoder" in self.model_fields_set:
            raise ConfigError(
                f"model.encoder = {self.encoder} is trained from scratch, and model.pretrained = {self.pretrained} was "
                "trained before; give one of the two"
            )
        return self


class LabelModel(nn.Module, Model):
    """An encoder and the names of labels. Subclasses say what is made of the states."""

    Config: ClassVar[type[LabelConfig]] = LabelConfig
    of_words: ClassVar[bool]  # whether each word is labelled, or the whole text
    unigram_counts: Tensor

    def __init__(self, config: LabelConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__()
        _check(config, output)
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.pretrained = _pretrained(config, vocabulary.size)
        self.features = None
        if self.pretrained is None:
            self.features = PretrainedFeatures(_scratch(config, vocabulary.size), None, tuned=True)
        self._remembered: FrozenStateCache | None = None

    @property
    def reader(self) -> PretrainedFeatures:
        """What makes states of tokens."""
        reader = self.features if self.pretrained is None else self.pretrained
        assert reader is not None
        return reader

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return [] if self.pretrained is None else list(self.pretrained.encoder.parameters())

    @property
    def word_table(self) -> nn.Embedding | None:
        """The table of an encoder that is trained from scratch."""
        table = None if self.features is None else self.features.encoder.word_table
        return table if isinstance(table, nn.Embedding) else None

    def train(self, mode: bool = True) -> Self:
        """Who trains reads the same texts again and again: what stays the same is remembered from here on."""
        frozen = self.pretrained is not None and not self.pretrained.tuned and self.pretrained.mix is None
        if mode and frozen and self._remembered is None:
            self._remembered = FrozenStateCache(self.reader)
        return super().train(mode)

    def read(self, source: Source) -> Tensor:
        """The encoder's states of each token, BSD."""
        if self._remembered is not None and source.tokens_BS.device.type == "cpu":
            return self._remembered(source)
        states_BSD: Tensor = self.reader(source)
        return states_BSD

    def make_network(self) -> nn.Sequential:
        """States to scores of the labels."""
        config = self.config
        return nn.Sequential(
            nn.Linear(self.reader.width, config.hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, len(config.labels)),
        )


def _check(config: LabelConfig, output: OutputChoice) -> None:
    if output.layer is not OUTPUTS.get("softmax").make:
        raise ConfigError(
            "labels are told by a network of their own and have no output layer to choose; leave --output out"
        )
    if len(config.labels) < 2:
        raise ConfigError(
            f"model.labels has {len(config.labels)} name(s), but there is something to tell only of two or more; "
            "`train` takes them from the data"
        )


def _scratch(config: LabelConfig, tokens: int) -> EncoderShape:
    """The shape of an encoder that is trained from scratch."""
    return shape_of(
        config.encoder,
        tokens,
        width=config.embedding,
        layers=config.layers,
        heads=config.heads,
        dropout=config.dropout,
        positions=config.positions,
    )


def _pretrained(config: LabelConfig, tokens: int) -> PretrainedFeatures | None:
    """The encoder that was trained before; None: it is trained from scratch."""
    if config.pretrained is None:
        return None
    if (shape := config.pretrained_shape) is None:
        raise ConfigError(
            f"model.pretrained is {config.pretrained}, but model.pretrained_shape is missing; give the shape that "
            "`open_pretrained` of pretrained.py tells, as `train` does"
        )
    if tokens > shape.vocab_size:
        raise ConfigError(
            f"the text has {tokens} different tokens, but the pretrained encoder knows {shape.vocab_size}; leave "
            "--tokenizer out, so that the text is read by the encoder's own tokeniser"
        )
    return PretrainedFeatures(shape, None, tuned=config.tuned)


class ClassifierConfig(LabelConfig):
    """The shape of a classifier."""

    pooling: PoolingKind = Field("attention", description="how states become one vector: attention, mean, max, first")
    multi_label: bool = Field(False, description="a text may have any number of labels; taken from JSON data")
    pairs: bool = Field(False, description="texts come in pairs; taken from the training data")


@MODELS.register("classifier", family="classifier", task="labels", objective="labels")
class Classifier(LabelModel):
    """p(label | text)."""

    Config = ClassifierConfig
    config: ClassifierConfig
    of_words: ClassVar[bool] = False

    def __init__(self, config: ClassifierConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.second_D = nn.Parameter(torch.zeros(self.reader.width)) if config.pairs else None
        self.pooling = make_pooling(config.pooling, self.reader.width)
        self.network = self.make_network()

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read the texts of a batch -> the scores of the labels, as features of one place, B1L."""
        assert batch.source is not None
        pooled_BD = self.pooling(self.states(batch), batch.source.mask_BS)
        return Outputs(self.network(pooled_BD)[:, None], None)

    def states(self, batch: Batch) -> Tensor:
        """What is pooled: the encoder's states, in the second text of a pair moved by a learned vector, BSD."""
        assert batch.source is not None
        states_BSD = self.read(batch.source)
        if self.second_D is None:
            return states_BSD
        assert batch.parts_BS is not None
        return states_BSD + batch.parts_BS[:, :, None] * self.second_D

    def nats(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the label of each text, or of all that are right and wrong for it together, B."""
        scores_BL = outputs.hidden_BTD[:, 0].float()
        if not self.config.multi_label:
            return F.cross_entropy(scores_BL, batch.targets_BT[:, 0], reduction="none")
        targets_BL = batch.targets_BT.to(scores_BL.dtype)
        return F.binary_cross_entropy_with_logits(scores_BL, targets_BL, reduction="none").sum(1)

    def probabilities(self, outputs: Outputs) -> Tensor:
        """p of each label, BL: they sum to one, unless there may be several."""
        scores_BL = outputs.hidden_BTD[:, 0].float()
        return scores_BL.sigmoid() if self.config.multi_label else scores_BL.softmax(1)

    def choose(self, outputs: Outputs, batch: Batch) -> Tensor:
        """What is told: the most probable label of each text, B1, or for each label whether it is told, BL."""
        probabilities_BL = self.probabilities(outputs)
        if self.config.multi_label:
            return (probabilities_BL > 0.5).to(torch.int64)
        return probabilities_BL.argmax(1, keepdim=True)
