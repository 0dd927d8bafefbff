"""The frame of all neural language models: embedding → feature layer → output layer.

    p(x) = Π p(x_t | x_<t)        p(x_t | x_<t) = output(h_t)        h_t = features(embedding(x_<t))

Bengio et al., "A Neural Probabilistic Language Model", 2003, introduced the three parts. Any feature layer can be
combined with any output layer. The decorator `@language_model("name", family="...")` makes a feature layer a model.

A feature layer either carries a state through text of any length (`window` is None) or sees at most `window` tokens. In
the second case this file extends p(x_t | x_<t) to text of any length: when the window is full, a new window starts with
the newer half of the old one. Parallel scoring and stepping use the same windows, so their results are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from chainrule.base.choosing import TokenChooser
from chainrule.base.parameters import weights_below
from chainrule.engines.decode.recurrent import RecurrentState
from chainrule.engines.decode.recurrent_weights import RecurrentWeights
from chainrule.engines.decode.stack import StackState
from chainrule.engines.decode.weights import StackWeights
from chainrule.layers.compiled import PackedModel, choose_continuations, linear_weights, predict, read_features
from chainrule.layers.compiled_recurrence import read_by_layers
from chainrule.layers.dropout import drop, word_mask
from chainrule.layers.fused.linear import Linear
from chainrule.layers.recurrent.stack import KERNEL_ROWS
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.registry import MODELS
from chainrule.types import (
    Batch,
    OutputChoice,
    Outputs,
    Source,
    State,
    SteppingModel,
    TensorHolder,
    TextEncoder,
    Vocabulary,
    select_rows,
)

LONG_TEXT = 64
"""Tokens read at once from which on torch scores a text instead of the decoding engine."""

TOKENS_PER_PASS = 16384
"""Tokens of overlapping windows that are read in one pass: enough for speed, few enough to bound memory."""

EngineState = StackState | RecurrentState


class Prefix(NamedTuple):
    """The state of a language model after a prefix."""

    features: State  # of the feature layer
    recent_BL: Tensor | None  # the tokens in the window; None: the layer has no window
    pending_B: Tensor | None  # a token that was scored but not read yet


class LanguageModel(nn.Module, SteppingModel, TokenChooser):
    """p(x) = Π p(x_t | x_<t) by embedding, feature layer and output layer."""

    Features: ClassVar[type[FeatureLayer]]
    Config: ClassVar[type[LanguageModelConfig]]
    unigram_counts: Tensor
    # As a text encoder:
    first = None
    reads_eos = False
    max_tokens = None

    def __init__(self, config: LanguageModelConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__()
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.register_buffer("unigram_counts", torch.as_tensor(vocabulary.counts_V, dtype=torch.int64))
        self.embedding = nn.Embedding(vocabulary.size, config.embedding)
        nn.init.normal_(self.embedding.weight, std=config.embedding**-0.5)
        self.features = self.Features(config, self.embedding)
        self.window = self.features.window
        tied = config.tied and output.layer.tieable
        width = config.embedding if tied else self.features.width
        self.bridge = Linear(self.features.width, width) if width != self.features.width else None
        self.output = output.layer(output.config, width, vocabulary)
        if tied:
            self.output.tie(self.embedding.weight)

    @cached_property
    def _packed(self) -> PackedModel:
        """The compiled form of the model."""
        return PackedModel()

    def train(self, mode: bool = True) -> Self:
        self._packed.forget()
        return super().train(mode)

    def _compiled(self) -> StackWeights | RecurrentWeights | None:
        bridge = None if self.bridge is None else linear_weights(self.bridge)
        return self.features.compiled(self.embedding, bridge, self.output.compiled)

    @property
    def feature_width(self) -> int:
        """Width of the features that `read` and `predictors` return."""
        width: int = self.output.width
        return width

    @property
    def word_table(self) -> nn.Embedding | None:
        """The embedding of the tokens."""
        return self.embedding

    @property
    def text_encoder(self) -> TextEncoder | None:
        """Itself: the features after each token encode texts of any length."""
        return self

    @classmethod
    def encoder_shape(cls, config: Any, vocab_size: int, eos: int) -> Any:
        if not cls.encodes:
            return super().encoder_shape(config, vocab_size, eos)
        return cls.Features.encoder_shape(config, vocab_size, eos)

    @classmethod
    def encoder_weights(cls, config: Any, weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
        return {"word_table.weight": weights["embedding.weight"], **weights_below(weights, "features.")}

    # Training

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTD that predict its targets, and the state after them."""
        if state is None:
            hidden_BTD, _ = self._read(batch.inputs_BT, None)
            return Outputs(hidden_BTD, None)
        hidden_BTD, features = self._read(batch.inputs_BT, state.features)
        return Outputs(hidden_BTD, Prefix(features, None, None))

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        embedded_BTD = self.embedding(tokens_BT)
        if self.training and self.config.word_dropout:
            embedded_BTD = embedded_BTD * word_mask(tokens_BT, self.vocab_size, self.config.word_dropout)
        return self._drop(embedded_BTD)

    def _read(self, tokens_BT: Tensor, features: State) -> tuple[Tensor, State]:
        hidden_BTD, features = self.features(self._embed(tokens_BT), features)
        return self._after_features(hidden_BTD), features

    def _after_features(self, hidden_BTD: Tensor) -> Tensor:
        return self._drop(hidden_BTD if self.bridge is None else self.bridge(hidden_BTD))

    def _drop(self, inputs_BTD: Tensor) -> Tensor:
        return drop(inputs_BTD, self.config.dropout, training=self.training, locked=self.config.variational)

    # Stepping

    def start(self, batch: int) -> Prefix:
        """The empty prefix. In evaluation mode and without gradients, the decoding engine reads it where it can."""
        engine = self._packed.engine(self, self.precision, self._compiled)
        if engine is not None:
            return Prefix(engine.start(batch), None, None)
        return self._start_of_torch(batch)

    def _start_of_torch(self, batch: int) -> Prefix:
        empty = self.unigram_counts.new_empty(batch, 0) if self.window else None
        return Prefix(self.features.start(batch), empty, None)

    def step(self, state: Prefix, token_B: Tensor) -> tuple[Tensor, Prefix]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix) after the last, BV, and the new state."""
        if isinstance(state.features, EngineState) and state.pending_B is None and state.features.predicts:
            log_probs_BV, features = predict(state.features, tokens_BT, "last")
            return log_probs_BV, Prefix(features, None, None)
        hidden_BTD, state = self.read(state, tokens_BT)
        return self.output.log_probs(hidden_BTD[:, -1]), state

    def extend(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix) after each, BTV, and the new state."""
        if isinstance(state.features, EngineState) and state.pending_B is None and state.features.predicts:
            log_probs_BTV, features = predict(state.features, tokens_BT, "all")
            return log_probs_BTV, Prefix(features, None, None)
        hidden_BTD, state = self.read(state, tokens_BT)
        log_probs_NV = self.output.log_probs(hidden_BTD[:, -tokens_BT.shape[1] :].flatten(0, 1))
        return log_probs_NV.unflatten(0, tokens_BT.shape), state

    def independent_rows(self, state: Prefix) -> bool:
        """Whether the decoding engine computes everything up to log p."""
        features = state.features
        return state.pending_B is None and isinstance(features, TensorHolder) and features.independent

    def continue_greedily(
        self, state: Prefix, token_1: Tensor, count: int, eos: int | None
    ) -> tuple[Sequence[int], Prefix] | None:
        """Append a token and then the most probable ones: several in one call of the engine, where it computes."""
        read = state.features
        if not (isinstance(read, EngineState) and state.pending_B is None and read.predicts and read.room):
            return None
        chosen, features = read.continue_greedily(int(token_1), count, -1 if eos is None else eos)
        return chosen.tolist(), Prefix(features, None, None)

    def best_continuations(
        self, state: Prefix, token_R: Tensor, log_prob_AW: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Prefix] | None:
        """The best continuations of a beam, where the engine computes them."""
        read = state.features
        if not (isinstance(read, EngineState) and state.pending_B is None and read.predicts and read.room):
            return None
        best_AM, cell_AM, after = choose_continuations(read, token_R, log_prob_AW, count)
        return best_AM, cell_AM, Prefix(after, None, None)

    def rewindable(self, state: Prefix) -> int | None:
        """The number of tokens that fit into the window; they can be read and then removed. None: never any."""
        if isinstance(state.features, StackState):
            return state.features.room - (state.pending_B is not None) if state.features.rewinds else None
        if self.window is None or state.recent_BL is None or not self.features.rewinds:
            return None
        return self.window - state.recent_BL.shape[1] - (state.pending_B is not None)

    def rewind(self, state: Prefix, count: int) -> Prefix:
        """The prefix without its last `count` tokens, all of them read since `rewindable` was called."""
        if isinstance(state.features, StackState):
            return Prefix(state.features.remove_last(count), None, None)
        assert state.recent_BL is not None
        kept = state.recent_BL.shape[1] - count
        return Prefix(self.features.rewind(state.features, count), state.recent_BL[:, :kept], None)

    def read(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Append T tokens to each prefix -> the features after each of them, BTD, and the new state.

        If a token was pending, the features after it come first.
        """
        if state.pending_B is not None:
            tokens_BT = torch.cat([state.pending_B[:, None], tokens_BT], 1)
        return self._extend(state, tokens_BT)

    def recent_tokens(self, state: Prefix) -> Tensor | None:
        """The tokens in the window of each prefix, BL; None: the model has no window."""
        if isinstance(state.features, StackState):
            tokens_BL = state.features.tokens()
            return None if tokens_BL is None else torch.from_numpy(tokens_BL)
        return state.recent_BL

    def select(self, state: Prefix, rows_K: Tensor) -> Prefix:
        """Row k of the result is row rows_K[k] of the state."""
        selected: Prefix = select_rows(state, rows_K)
        return selected

    def encode_text(self, source: Source) -> Tensor:
        """The features after each token, given `eos` and the text up to that token, BSD."""
        before_B1 = source.tokens_BS.new_full((len(source.tokens_BS), 1), self.eos)
        hidden_BTD, _ = self._extend(self.start(len(before_B1)), torch.cat([before_B1, source.tokens_BS], 1))
        return hidden_BTD[:, 1:]

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor] | None:
        """None: the layers of a feature layer cannot be read separately."""
        return None

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(tokens_BT.shape[0]))[0]

    def score(self, tokens_BT: Tensor, state: Prefix) -> tuple[Tensor, Prefix]:
        """log p of each token given the state and all tokens before it -> BT, and the state after them."""
        hidden_BTD, state = self.predictors(tokens_BT, state)
        log_probs_N = self.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        return log_probs_N.view(tokens_BT.shape), state

    def predictors(self, tokens_BT: Tensor, state: Prefix) -> tuple[Tensor, Prefix]:
        """The features that predict each token -> BTD, and the state after the tokens.

        Torch reads texts that begin with many tokens at once: its products are faster than those of the engine, which
        is made for a few tokens at a time.
        """
        is_long = tokens_BT.shape[1] >= LONG_TEXT and self.precision == "float32"
        if is_long and isinstance(state.features, StackState) and state.pending_B is None and state.features.is_empty:
            state = self._start_of_torch(len(tokens_BT))
        before_B = tokens_BT.new_full((tokens_BT.shape[0],), self.eos) if state.pending_B is None else state.pending_B
        inputs_BT = torch.cat([before_B[:, None], tokens_BT[:, :-1]], 1)
        hidden_BTD, state = self._extend(state, inputs_BT)
        return hidden_BTD, state._replace(pending_B=tokens_BT[:, -1])

    def _extend(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Read tokens after a prefix of any length -> hidden_BTD, and the new state without a pending token."""
        many = len(tokens_BT) > KERNEL_ROWS and tokens_BT.shape[1] > 1 and self.precision == "float32"
        if many and isinstance(state.features, RecurrentState):
            hidden_BTD, after = read_by_layers(state.features, partial(self._read, tokens_BT))
            return hidden_BTD, Prefix(after, None, None)
        if isinstance(state.features, EngineState):
            hidden_BTD, features = read_features(state.features, tokens_BT)
            return hidden_BTD, Prefix(features, None, None)
        if self.window is None or state.recent_BL is None:
            hidden_BTD, features = self._read(tokens_BT, state.features)
            return hidden_BTD, Prefix(features, None, None)
        room = self.window - state.recent_BL.shape[1]
        if tokens_BT.shape[1] <= room:
            hidden_BTD, features = self._read(tokens_BT, state.features)
            return hidden_BTD, Prefix(features, torch.cat([state.recent_BL, tokens_BT], 1), None)
        return self._slide(state, tokens_BT, room)

    def _slide(self, state: Prefix, tokens_BT: Tensor, room: int) -> tuple[Tensor, Prefix]:
        """Read more tokens than fit: fill the window, then start new windows, each with the newer half of the last."""
        assert self.window is not None
        assert state.recent_BL is not None
        keep = self.window // 2
        stride = self.window - keep
        parts = [self._read(tokens_BT[:, :room], state.features)[0]] if room else []
        stream_BT = torch.cat([state.recent_BL, tokens_BT], 1)[:, stride:]  # starts where the next window starts
        whole, left = divmod(stream_BT.shape[1] - keep, stride)  # windows that are filled, and tokens after them
        if whole:
            parts.append(self._read_windows(stream_BT[:, : keep + whole * stride], keep, whole))
        if not left:  # the next token starts a new window, so the features need no state
            return torch.cat(parts, 1), Prefix(None, stream_BT[:, -self.window :], None)
        rest_BT = stream_BT[:, whole * stride :]
        last = Prefix(self.features.start(rest_BT.shape[0]), rest_BT[:, :0], None)
        hidden_BTD, last = self._extend(last, rest_BT)
        return torch.cat([*parts, hidden_BTD[:, keep:]], 1), last

    def _read_windows(self, stream_BT: Tensor, keep: int, count: int) -> Tensor:
        """Features of all tokens after the first `keep`, from `count` overlapping windows read as rows of one batch."""
        assert self.window is not None
        B, stride = stream_BT.shape[0], self.window - keep
        windows_NL = stream_BT.unfold(1, self.window, stride).reshape(B * count, self.window)
        parts = windows_NL.split(max(1, TOKENS_PER_PASS // self.window))
        hidden = torch.cat([self.features.newer(self._embed(windows_ML), keep) for windows_ML in parts])
        return self._after_features(hidden.reshape(B, count * stride, -1))


def language_model(
    name: str, *, family: str, counterpart: str | None = None
) -> Callable[[type[FeatureLayer]], type[FeatureLayer]]:
    """Register a feature layer as the language model `name`; `counterpart` names the translator of the same kind."""

    def register(features: type[FeatureLayer]) -> type[FeatureLayer]:
        parts = {
            "Features": features,
            "Config": features.Config,
            "prefers": features.prefers,
            "suggestions": features.suggestions,
            "encodes": features.encodes,
            "shardable": features.shardable,
            "attention_weights": _attention_weights,
            "__doc__": features.__doc__,
        }
        model = type(features.__name__ + "LanguageModel", (LanguageModel,), parts)
        MODELS.register(name, family=family, task="lm", counterpart=counterpart)(model)
        return features

    return register


def _attention_weights(self: LanguageModel, tokens_BT: Tensor) -> list[Tensor] | None:
    """`Model.attention_weights` of a model that is made of a feature layer."""
    return self.features.attention_weights(self._embed(tokens_BT))
