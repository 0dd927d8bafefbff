"""The frame of all translators: an encoder reads a source, and a decoder predicts a target.

    p(y | x) = Π p(y_t | y_<t, x)

Sutskever et al., "Sequence to Sequence Learning with Neural Networks", 2014. A translator implements the contract of
the language models with one difference: it starts from a Source. `start(source)` encodes the source, and `step` and
`select` work on the result, so that everything that decodes a language model also decodes a translator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from chainrule.base.choosing import TokenChooser
from chainrule.errors import ConfigError
from chainrule.layers.compiled import PackedModel
from chainrule.layers.encoders.build import parse_shape
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.layers.fused.linear import Linear
from chainrule.models.pretrained_encoder import PretrainedFields, make_pretrained
from chainrule.types import Batch, OutputChoice, Outputs, Source, State, SteppingModel, Vocabulary, select_rows


class TranslatorConfig(BaseModel):
    """Options of all translators."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    embedding: int = Field(256, ge=1, description="width of the token embeddings")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of all layers")
    tied: bool = Field(True, description="share one matrix between target embedding and output layer, if it allows it")
    shared: bool = Field(True, description="share one embedding between source and target, if they have one vocabulary")


class PretrainedConfig(PretrainedFields, TranslatorConfig):
    """Options of translators of any length that can read their source with a pretrained encoder."""

    @property
    def context(self) -> int | None:
        """The largest number of source tokens that the pretrained encoder reads; None: any number."""
        return None if self.pretrained_shape is None else self.pretrained_shape.source_window


class EncoderDecoderConfig(PretrainedFields, TranslatorConfig):
    """Options of Transformers, whose encoder has blocks above the embedding or the pretrained encoder."""

    embedding: int = Field(256, ge=1, description="width of the residual streams")
    encoder_layers: int = Field(
        3,
        ge=0,
        description="number of encoder blocks (with a pretrained encoder the default is 0: none above it)",
    )
    context: int = Field(
        1024,
        ge=2,
        description="largest number of tokens of a source or target; a pretrained encoder may lower it",
    )

    @model_validator(mode="before")
    @classmethod
    def _follow_encoder(cls, values: Any) -> Any:
        """Defaults with a pretrained encoder: no further blocks, and no more tokens than it reads."""
        if not isinstance(values, dict) or not values.get("pretrained"):
            return values
        window = None if (shape := values.get("pretrained_shape")) is None else parse_shape(shape).source_window
        context = cls.model_fields["context"].default
        return {"encoder_layers": 0, "context": context if window is None else min(context, window), **values}

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        if not self.encoder_layers and self.pretrained is None:
            raise ConfigError("model.encoder_layers is 0 without a pretrained encoder; give at least 1 block")
        window = None if self.pretrained_shape is None else self.pretrained_shape.source_window
        if window is not None and self.context > window:
            raise ConfigError(
                f"model.context is {self.context}, but the pretrained encoder reads at most {window} tokens; give "
                f"{window} or fewer"
            )
        return self


class Translator(nn.Module, SteppingModel):
    """p(y | x) by embedding, encoder, decoder and output layer. Subclasses define `begin` and `read`."""

    Config: ClassVar[type[TranslatorConfig]] = TranslatorConfig
    window: int | None = None  # largest number of tokens of either side
    attends: ClassVar[bool] = True
    unigram_counts: Tensor

    def __init__(self, config: TranslatorConfig, vocabulary: Vocabulary, output: OutputChoice, width: int) -> None:
        """`width` is the width of the decoder's features."""
        super().__init__()
        self.config = config
        self.eos, self.vocab_size = vocabulary.eos, vocabulary.size
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.embedding = nn.Embedding(vocabulary.size, config.embedding)
        source_size = (vocabulary.source or vocabulary).size
        shared = vocabulary.source is None and config.shared
        self.pretrained = _make_pretrained(config, source_size)
        if self.pretrained is None:
            self.source_embedding = self.embedding if shared else nn.Embedding(source_size, config.embedding)
        else:
            self.window = self.pretrained.window
        for table in self.own_tables:
            nn.init.normal_(table.weight, std=config.embedding**-0.5)
        tied = config.tied and output.layer.tieable
        self.bridge = Linear(width, config.embedding) if tied and width != config.embedding else None
        self.output = output.layer(output.config, config.embedding if tied else width, vocabulary)
        if tied:
            self.output.tie(self.embedding.weight)

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return [] if self.pretrained is None else list(self.pretrained.encoder.parameters())

    @property
    def own_tables(self) -> list[nn.Embedding]:
        """The embeddings of target and source, each once, in a fixed order, on which the random draws depend."""
        source = self.source_table
        return [self.embedding] if source is None else [self.embedding, source]

    @property
    def word_table(self) -> nn.Embedding | None:
        """The embedding of the target tokens."""
        return self.embedding

    @property
    def source_table(self) -> nn.Embedding | None:
        """The embedding of the source tokens; None: the target's is shared, or a pretrained encoder reads them."""
        table = None if self.pretrained is not None else self.source_embedding
        return None if table is self.embedding else table

    @cached_property
    def _packed(self) -> PackedModel:
        """The compiled form of the model."""
        return PackedModel()

    def train(self, mode: bool = True) -> Self:
        """Training reads the same sources repeatedly, so it caches the states of a frozen encoder."""
        self._packed.forget()
        if mode and self.pretrained is not None:
            self.pretrained.cache_states()
        return super().train(mode)

    # What a subclass defines

    def begin(self, source: Source, *, stepping: bool) -> State:
        """Encode a source -> the state before the first target token; `stepping`: `read` will be called repeatedly."""
        raise TypeError(f"{type(self).__name__} must define begin")

    def read(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T target tokens to each prefix -> the decoder's features after each, BTD, and the new state."""
        raise TypeError(f"{type(self).__name__} must define read")

    def embed_source(self, source: Source) -> Tensor:
        """The features of each source token, BSD: its embedding, or its features by the pretrained encoder."""
        features_BSD: Tensor = (
            self.source_embedding(source.tokens_BS) if self.pretrained is None else self.pretrained(source)
        )
        return features_BSD

    # Training

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read source and inputs of a batch -> hidden_BTD that predict its targets; no state is carried."""
        assert batch.source is not None
        hidden_BTD, _ = self.read(self.begin(batch.source, stepping=False), batch.inputs_BT)
        return Outputs(self._apply_bridge(hidden_BTD), None)

    def policy_features(self, batch: Batch) -> Tensor:
        """Features BTD of the distribution from which `step` samples, with gradient through all of it."""
        hidden_BTD: Tensor = self(batch).hidden_BTD
        return hidden_BTD

    def _apply_bridge(self, hidden: Tensor) -> Tensor:
        return hidden if self.bridge is None else self.bridge(hidden)

    # Stepping

    def start(self, source: Source) -> State:
        """The empty prefix of the target of each source row."""
        return self.begin(source, stepping=True)

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        """Append a token to each prefix -> log p(. | prefix, source) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix, source) after the last, BV, and the state."""
        hidden_BTD, state = self.read(state, tokens_BT)
        return self.output.log_probs(self._apply_bridge(hidden_BTD[:, -1])), state

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix, source) after each, BTV, and the state."""
        hidden_BTD, state = self.read(state, tokens_BT)
        return self.output.log_probs(self._apply_bridge(hidden_BTD).flatten(0, 1)).unflatten(0, tokens_BT.shape), state

    def select(self, state: State, rows_K: Tensor) -> State:
        """Row k of the result is row rows_K[k] of the state."""
        return select_rows(state, rows_K)

    # Scoring

    def log_probs(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """log p(y_t | eos, y_<t, source) -> BT: forced decoding, all positions in parallel."""
        hidden_BTD = self.forward(Batch(self.shift_right(tokens_BT), tokens_BT, source=source)).hidden_BTD
        log_probs_N: Tensor = self.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        return log_probs_N.view(tokens_BT.shape)

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """The attention weights over the source with which each target token is predicted, BTS; they sum to one."""
        raise TypeError(f"{type(self).__name__} has no attention")

    def shift_right(self, tokens_BT: Tensor) -> Tensor:
        """The decoder inputs for the given targets, BT: `eos`, then all tokens except the last."""
        return torch.cat([tokens_BT.new_full((len(tokens_BT), 1), self.eos), tokens_BT[:, :-1]], 1)


def _make_pretrained(config: TranslatorConfig, source_size: int) -> PretrainedFeatures | None:
    """The pretrained encoder of the source; None: an embedding is used."""
    if not isinstance(config, PretrainedFields):
        return None
    return make_pretrained(
        config,
        source_size,
        config.embedding,
        side="source",
        tokenizer="tokenizer.source",
        embedding=config.token_embedding,
    )


class ConditionedModel(nn.Module, SteppingModel, TokenChooser):
    """A translator with a fixed source, as a language model of the target.

    `start(batch)` uses the first `batch` rows of the source.
    """

    def __init__(self, model: Translator, source: Source) -> None:
        super().__init__()
        self.model, self.source = model, source
        self.vocab_size, self.eos = model.vocab_size, model.eos

    def start(self, batch: int) -> State:
        return self.model.start(Source(*(part[:batch] for part in self.source)))

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        return self.model.step(state, token_B)

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        return self.model.prefill(state, tokens_BT)

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        return self.model.extend(state, tokens_BT)

    def continue_greedily(
        self, state: State, token_1: Tensor, count: int, eos: int | None
    ) -> tuple[Sequence[int], State] | None:
        model = self.model if isinstance(self.model, TokenChooser) else TokenChooser()
        return model.continue_greedily(state, token_1, count, eos)

    def best_continuations(
        self, state: State, token_R: Tensor, log_prob_AW: Tensor, count: int
    ) -> tuple[Tensor, Tensor, State] | None:
        model = self.model if isinstance(self.model, TokenChooser) else TokenChooser()
        return model.best_continuations(state, token_R, log_prob_AW, count)

    def select(self, state: State, rows_K: Tensor) -> State:
        return self.model.select(state, rows_K)

    def rewindable(self, state: State) -> int | None:
        return self.model.rewindable(state)

    def rewind(self, state: State, count: int) -> State:
        return self.model.rewind(state, count)

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        source = Source(*(part[: len(tokens_BT)] for part in self.source))
        log_probs_BT: Tensor = self.model.log_probs(tokens_BT, source)
        return log_probs_BT
