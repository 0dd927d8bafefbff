"""Every translator is an encoder that reads a source and a decoder that writes a target; this file is their frame.

    p(y | x) = Π p(y_t | y_<t, x)

Sutskever et al., "Sequence to Sequence Learning with Neural Networks", 2014. A translator keeps the contract of the
language models with one difference: it starts from a Source. `start(source)` encodes it, `step` and `select` go on from
there, so whatever decodes a language model decodes a translator.

Legend: B batch, T time, S source time, V vocabulary, D width, K kept rows.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.encoders.bert import BertEncoder as BertEncoder  # offered to what fills it with weights
from chainrule.layers.encoders.bert import BertShape as BertShape
from chainrule.layers.encoders.build import EncoderShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.types import Batch, OutputChoice, Outputs, Source, State, SteppingModel, Vocabulary, select_rows


class TranslatorConfig(BaseModel):
    """What all translators share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    embedding: int = Field(256, ge=1, description="width of a token's vector")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of units dropped")
    tied: bool = Field(True, description="one matrix for target embedding and output, where the output can share it")
    shared: bool = Field(True, description="one embedding for source and target, where they have one vocabulary")


class PretrainedConfig(TranslatorConfig):
    """What translators share that can read their source by an encoder which was trained before."""

    pretrained: str | None = Field(
        None, description="an encoder that makes the source's features: a folder, a run, or a package that holds one"
    )
    tuned: bool = Field(False, description="train that encoder with the rest; false: it stays as it is")
    pretrained_shape: EncoderShape | None = Field(None, description="what that encoder is like, as its folder tells")

    @property
    def context(self) -> int | None:
        """The most tokens that the encoder can read of a source."""
        return None if self.pretrained_shape is None else self.pretrained_shape.source_window

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("tuned", "pretrained_shape"):
            if getattr(self, name) and self.pretrained is None:
                raise ConfigError(f"model.{name} is of a pretrained encoder; give one with model.pretrained")
        return self


class Translator(nn.Module, SteppingModel):
    """p(y | x) by embedding, encoder, decoder and output layer. Subclasses give `begin` and `read`."""

    Config: ClassVar[type[TranslatorConfig]] = TranslatorConfig
    window: int | None = None  # the most tokens that either side may have
    attends: ClassVar[bool] = True
    unigram_counts: Tensor

    def __init__(self, config: TranslatorConfig, vocabulary: Vocabulary, output: OutputChoice, width: int) -> None:
        """`width` is that of the decoder's features."""
        super().__init__()
        self.config = config
        self.eos, self.vocab_size = vocabulary.eos, vocabulary.size
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.embedding = nn.Embedding(vocabulary.size, config.embedding)
        read = vocabulary.source or vocabulary
        one = vocabulary.source is None and config.shared
        self.pretrained = _pretrained(config, read.size)
        tables = [self.embedding]
        if self.pretrained is None:
            self.source_embedding = self.embedding if one else nn.Embedding(read.size, config.embedding)
            tables.append(self.source_embedding)
        else:
            self.window = self.pretrained.window
        for table in dict.fromkeys(tables):  # in this order: same seed, same model
            nn.init.normal_(table.weight, std=config.embedding**-0.5)
        tied = config.tied and output.layer.tieable
        self.bridge = nn.Linear(width, config.embedding) if tied and width != config.embedding else None
        self.output = output.layer(output.config, config.embedding if tied else width, vocabulary)
        if tied:
            self.output.tie(self.embedding.weight)

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return [] if self.pretrained is None else list(self.pretrained.encoder.parameters())

    @property
    def word_table(self) -> nn.Embedding | None:
        """The embedding of the target tokens."""
        return self.embedding

    @property
    def source_table(self) -> nn.Embedding | None:
        """The embedding of the source tokens, where it is another table than that of the target."""
        own = None if self.pretrained is not None else self.source_embedding
        return None if own is self.embedding else own

    # What a subclass gives

    def begin(self, source: Source, *, stepping: bool) -> State:
        """Encode a source -> the state before the first target token; `stepping`: one that can be walked."""
        raise TypeError(f"{type(self).__name__} must define begin")

    def read(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T target tokens to each prefix -> the decoder's features after each, BTD, and the longer state."""
        raise TypeError(f"{type(self).__name__} must define read")

    def embed_source(self, source: Source) -> Tensor:
        """The features of each source token, BSD: its vector in a table, or what a pretrained encoder makes of it."""
        features_BSD: Tensor = (
            self.source_embedding(source.tokens_BS) if self.pretrained is None else self.pretrained(source)
        )
        return features_BSD

    # Training

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read source and inputs of a batch -> hidden_BTD to predict its targets from; no state is carried."""
        assert batch.source is not None
        hidden_BTD, _ = self.read(self.begin(batch.source, stepping=False), batch.inputs_BT)
        return Outputs(self._bridged(hidden_BTD), None)

    def _bridged(self, hidden: Tensor) -> Tensor:
        return hidden if self.bridge is None else self.bridge(hidden)

    # Stepping

    def start(self, source: Source) -> State:
        """The empty prefix of a translation of each row of the source."""
        return self.begin(source, stepping=True)

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        """Append a token to each prefix -> log p(. | prefix, source) BV, and the longer prefix."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T tokens to each prefix at once -> log p(. | prefix, source) BV after the last, and the state."""
        hidden_BTD, state = self.read(state, tokens_BT)
        return self.output.log_probs(self._bridged(hidden_BTD[:, -1])), state

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T tokens to each prefix at once -> log p(. | prefix, source) after each, BTV, and the state."""
        hidden_BTD, state = self.read(state, tokens_BT)
        return self.output.log_probs(self._bridged(hidden_BTD).flatten(0, 1)).unflatten(0, tokens_BT.shape), state

    def select(self, state: State, rows_K: Tensor) -> State:
        """Row k of the result is row rows_K[k] of the state."""
        return select_rows(state, rows_K)

    # Scoring

    def log_probs(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """log p(y_t | eos, y_<t, source) -> BT: forced decoding, all positions at once."""
        hidden_BTD = self.forward(Batch(self.shifted(tokens_BT), tokens_BT, source=source)).hidden_BTD
        log_probs_N: Tensor = self.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        return log_probs_N.view(tokens_BT.shape)

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        """Where the decoder looks when it predicts each target token: weights over the source that sum to one, BTS."""
        raise TypeError(f"{type(self).__name__} has no attention")

    def shifted(self, tokens_BT: Tensor) -> Tensor:
        """What is read before each token: `eos`, then the tokens but the last."""
        return torch.cat([tokens_BT.new_full((len(tokens_BT), 1), self.eos), tokens_BT[:, :-1]], 1)


def _pretrained(config: TranslatorConfig, tokens: int) -> PretrainedFeatures | None:
    """What reads the source, of which there are so many different tokens; None: a table of embeddings does."""
    if not isinstance(config, PretrainedConfig) or config.pretrained is None:
        return None
    if (shape := config.pretrained_shape) is None:
        raise ConfigError(
            f"model.pretrained is {config.pretrained}, but model.pretrained_shape is missing; give the shape that "
            "`open_pretrained` of pretrained.py tells, as `train` does"
        )
    if tokens > shape.vocab_size:
        raise ConfigError(
            f"the source has {tokens} different tokens, but the pretrained encoder knows {shape.vocab_size}; leave "
            "tokenizer.source out, so that the source is read by the encoder's own tokeniser"
        )
    return PretrainedFeatures(shape, config.embedding, tuned=config.tuned)


class Given(nn.Module, SteppingModel):
    """A translator with its source fixed: a language model of the target, for whatever works on those.

    So many starts are those of the source's first rows.
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
