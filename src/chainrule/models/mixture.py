"""Linear interpolation: p(w | prefix) = Σ_k w_k p_k(w | prefix), over models of one vocabulary and caches.

Jelinek & Mercer, "Interpolated Estimation of Markov Source Parameters from Sparse Data", 1980: the weights are those
that make a held-out text most likely, found by EM, one set for all contexts or one for each bucket of contexts. A part
may be anything that keeps the contract, a mixture too. See `cache.py` for the components that learn while they read.

Legend: B batch, T time, V vocabulary, D width, K components (the parts, then the caches), Z buckets, N tokens
of a text, or the entries of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.models.adaptive_cache import AnyCacheConfig, ContinuousCache, UnigramCache, UnigramCacheConfig
from chainrule.models.language_model import LanguageModel
from chainrule.registry import MODELS
from chainrule.types import State, SteppingModel, Vocabulary, select_rows

Array = np.ndarray[Any, Any]
MOST_BUCKETS = 12
FEWEST_TOKENS = 100
"""Of a bucket that has weights of its own."""
GAIN = 1e-7
"""EM ends when it gains less, in nats a token."""


class MixtureConfig(BaseModel):
    """What a mixture is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parts: int = Field(1, ge=1, description="how many models, in the folders parts/0, parts/1 and so on")
    caches: tuple[AnyCacheConfig, ...] = Field((), description="the caches, each with its kind and options")
    buckets: bool = Field(False, description="weights by how well the context is known")


class Mixed(NamedTuple):
    """What a mixture remembers of a prefix."""

    parts: tuple[State, ...]
    caches: tuple[State, ...]
    newest_B: Tensor | None  # the last token; None before any, not even the eos before a text, was given
    hidden: tuple[Tensor | None, ...]  # of each part, the features BD that predict the next token, where they are known


class _Read(NamedTuple):
    """What came of a part's reading."""

    answer: Tensor  # BV or BT
    state: State
    predictors_BTD: Tensor | None  # the features that predicted the tokens read
    newest_BD: Tensor | None  # those that predict the next one


@MODELS.register("mixture", family="mixture", task="lm", fitting="mix")
class Mixture(nn.Module, SteppingModel):
    """A weighted sum of models and caches."""

    Config: ClassVar[type[MixtureConfig]] = MixtureConfig
    has_parts = True
    unigram_counts: Tensor
    weights: Tensor

    def __init__(
        self,
        config: MixtureConfig,
        vocabulary: Vocabulary,
        parts: Sequence[nn.Module],
        weights_ZK: Tensor | None = None,
    ) -> None:
        """Equal weights if none are given."""
        super().__init__()
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.parts: Any = nn.ModuleList(parts)
        self.caches: list[Any] = [_make_cache(cache, parts, vocabulary.size) for cache in config.caches]
        self._watched = {cache.part for cache in self.caches}
        counts_V = torch.as_tensor(vocabulary.counts_V, dtype=torch.int64)
        self.register_buffer("unigram_counts", counts_V)
        self.bucketing = _bucketing(parts, counts_V) if config.buckets else OneBucket()
        shape = (self.bucketing.count, len(parts) + len(self.caches))
        # Single precision: not every device has another.
        weights_ZK = torch.full(shape, 1 / shape[1]) if weights_ZK is None else weights_ZK.float()
        if weights_ZK.shape != shape:
            raise ConfigError(
                f"the weights have the shape {tuple(weights_ZK.shape)}, but {shape[0]} bucket(s) of {shape[1]} "
                f"components need {shape}; mix again"
            )
        self.register_buffer("weights", weights_ZK)
        # A component that learns while it reads must read a text from its beginning to its end.
        self.tracks = 1 if self.caches or any(part.tracks == 1 for part in self.parts) else None

    @property
    def parameter_count(self) -> int:
        """The numbers that the parts consist of."""
        return sum(part.parameter_count for part in self.parts)

    # Stepping

    def start(self, batch: int) -> Mixed:
        """The empty prefix."""
        caches = tuple(cache.start(batch, self.weights.device) for cache in self.caches)
        return Mixed(tuple(part.start(batch) for part in self.parts), caches, None, (None,) * len(self.parts))

    def step(self, state: Mixed, token_B: Tensor) -> tuple[Tensor, Mixed]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the longer prefix."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Mixed, tokens_BT: Tensor) -> tuple[Tensor, Mixed]:
        """Append T tokens to each prefix at once -> log p(. | prefix) BV after the last, and the longer prefix."""
        reads = [self._read(number, state, tokens_BT) for number in range(len(self.parts))]
        # The first token ever given is the eos before the text, which is no part of it.
        new_BT = tokens_BT if state.newest_B is not None else tokens_BT[:, 1:]
        rows, caches = [read.answer for read in reads], []
        for cache, before in zip(self.caches, state.caches, strict=True):
            watched = reads[cache.part or 0]  # a cache that watches no part heeds no features
            caches.append(cache.read(new_BT, watched.predictors_BTD, before))
            rows.append(cache.row(watched.newest_BD, caches[-1]))
        newest = tuple(read.newest_BD for read in reads)
        after = Mixed(tuple(read.state for read in reads), tuple(caches), tokens_BT[:, -1], newest)
        return self._mix(torch.stack(rows), self.bucketing.of_prefix(self.parts, after)[:, None]), after

    def _read(self, number: int, state: Mixed, tokens_BT: Tensor) -> _Read:
        """One part appends T tokens; where a cache watches it, with its features, from the same pass."""
        part, before = self.parts[number], state.parts[number]
        if number not in self._watched:
            row_BV, after = part.prefill(before, tokens_BT)
            return _Read(row_BV.float(), after, None, None)
        hidden_BTD, after = part.read(before, tokens_BT)
        newest_BD, known_BD = hidden_BTD[:, -1], state.hidden[number]
        if known_BD is not None:
            hidden_BTD = torch.cat([known_BD[:, None], hidden_BTD], 1)
        # What stands before a token predicted it; what stands after the last predicts what is not known yet.
        return _Read(part.output.log_probs(newest_BD).float(), after, hidden_BTD[:, :-1], newest_BD)

    def select(self, state: Mixed, rows_K: Tensor) -> Mixed:
        """Row k of the result is row rows_K[k] of the state."""
        parts = tuple(part.select(one, rows_K) for part, one in zip(self.parts, state.parts, strict=True))
        return Mixed(parts, *(select_rows(rest, rows_K) for rest in state[1:]))

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(tokens_BT.shape[0]))[0]

    def score(self, tokens_BT: Tensor, state: Mixed) -> tuple[Tensor, Mixed]:
        """log p of each token given all before it, those of the state included -> BT, and the state to go on from."""
        log_probs_KBT, after = self.experts(tokens_BT, state)
        return self._mix(log_probs_KBT, self.buckets_of(tokens_BT, state)), after

    def experts(self, tokens_BT: Tensor, state: Mixed) -> tuple[Tensor, Mixed]:
        """What each component by itself says of each token -> KBT, and the state to go on from."""
        reads = [self._score(number, state, tokens_BT) for number in range(len(self.parts))]
        answers, caches = [read.answer for read in reads], []
        for cache, before in zip(self.caches, state.caches, strict=True):
            answer_BT, after = cache.score(tokens_BT, reads[cache.part or 0].predictors_BTD, before)
            answers.append(answer_BT)
            caches.append(after)
        newest = (None,) * len(reads)  # each part keeps its last token pending, so it is not known yet
        return torch.stack(answers), Mixed(tuple(read.state for read in reads), tuple(caches), tokens_BT[:, -1], newest)

    def _score(self, number: int, state: Mixed, tokens_BT: Tensor) -> _Read:
        """What one part says of each token; where a cache watches it, with its features, from the same pass."""
        part, before = self.parts[number], state.parts[number]
        if number not in self._watched:
            answer_BT, after = part.score(tokens_BT, before)
            return _Read(answer_BT.float(), after, None, None)
        hidden_BTD, after = part.predictors(tokens_BT, before)
        answer_N = part.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        return _Read(answer_N.view(tokens_BT.shape).float(), after, hidden_BTD, None)

    def buckets_of(self, tokens_BT: Tensor, state: Mixed) -> Tensor:
        """The bucket of the context of each token, whose weights it is scored with -> int64 BT."""
        newest_B = torch.full_like(tokens_BT[:, 0], self.eos) if state.newest_B is None else state.newest_B
        previous_BT = torch.cat([newest_B[:, None], tokens_BT[:, :-1]], 1)
        return self.bucketing.of_tokens(self.parts, tokens_BT, previous_BT, state)

    def _mix(self, log_probs_KBN: Tensor, buckets_BN: Tensor) -> Tensor:
        """log Σ_k w_k p_k -> BN; `buckets_BN` may be one column for all N. -inf is a probability like any other."""
        log_weights_KBN = self.weights.log()[buckets_BN].movedim(-1, 0)
        return torch.logsumexp(log_probs_KBN + log_weights_KBN, 0)


# Buckets


class OneBucket(nn.Module):
    """The same weights everywhere."""

    count = 1

    def of_tokens(self, parts: Any, tokens_BT: Tensor, previous_BT: Tensor, state: Mixed) -> Tensor:
        """The bucket of the context of each token, given the state before them -> int64 BT."""
        return torch.zeros_like(tokens_BT)

    def of_prefix(self, parts: Any, state: Mixed) -> Tensor:
        """The bucket of a prefix, given the state after it -> int64 B."""
        assert state.newest_B is not None
        return torch.zeros_like(state.newest_B)


class DepthBuckets(OneBucket):
    """By the length of the longest context that a part of counts has seen."""

    count = MOST_BUCKETS

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def of_tokens(self, parts: Any, tokens_BT: Tensor, previous_BT: Tensor, state: Mixed) -> Tensor:
        depth_BT: Tensor = parts[self.part].depths(tokens_BT, state.parts[self.part])
        return depth_BT.clamp(max=self.count - 1).to(tokens_BT.device)

    def of_prefix(self, parts: Any, state: Mixed) -> Tensor:
        assert state.newest_B is not None
        depth_B: Tensor = parts[self.part].depth_rows(state.parts[self.part])
        return depth_B.clamp(max=self.count - 1).to(state.newest_B.device)


class CountBuckets(OneBucket):
    """By how often the last token came in training: ⌊log2(1 + count)⌋."""

    count = MOST_BUCKETS
    bucket_V: Tensor

    def __init__(self, counts_V: Tensor) -> None:
        super().__init__()
        most = 1 << (self.count - 1)
        exponent_V = torch.frexp((1 + counts_V).clamp(max=most).double()).exponent.long() - 1
        self.register_buffer("bucket_V", exponent_V, persistent=False)

    def of_tokens(self, parts: Any, tokens_BT: Tensor, previous_BT: Tensor, state: Mixed) -> Tensor:
        return self.bucket_V[previous_BT]

    def of_prefix(self, parts: Any, state: Mixed) -> Tensor:
        return self.bucket_V[state.newest_B]


def _bucketing(parts: Sequence[Any], counts_V: Tensor) -> OneBucket:
    """The depth of the first part that knows it, else the count of the last token."""
    for number, part in enumerate(parts):
        if part.context_depths is not None:
            return DepthBuckets(number)
    return CountBuckets(counts_V)


# Reading


def _make_cache(config: Any, parts: Sequence[nn.Module], vocab_size: int) -> UnigramCache | ContinuousCache:
    if isinstance(config, UnigramCacheConfig):
        return UnigramCache(config, vocab_size)
    part = parts[config.part] if config.part < len(parts) else None
    if not isinstance(part, LanguageModel):
        raise ConfigError(
            f"a continuous cache compares the features of a network, but part {config.part} has none; "
            "give it the number of a neural model"
        )
    return ContinuousCache(config, vocab_size, part.feature_width)


# Weights


@dataclass(frozen=True)
class FittedWeights:
    """Weights that EM found."""

    weights_ZK: Array  # float64
    whole_K: Array  # those without buckets
    iterations: int
    nats: float  # -log p a token under `whole_K`, over the tokens that some component allows


def fit_weights(log_probs_KN: Array, buckets_N: Array | None = None, buckets: int = 1) -> FittedWeights:
    """The weights that make the tokens most likely, by EM, in each bucket by itself where it has enough tokens."""
    top_N = log_probs_KN.max(0).astype(np.float64)
    possible_N = np.isfinite(top_N)  # what no component allows, no weights can mend
    probs_KN = np.exp(log_probs_KN[:, possible_N] - top_N[possible_N])
    whole_K, iterations, gained = _em(probs_KN, np.full(len(probs_KN), 1 / len(probs_KN)))
    weights_ZK = np.tile(whole_K, (buckets, 1))
    if buckets_N is not None and buckets > 1:
        for bucket in range(buckets):
            inside_KN = probs_KN[:, buckets_N[possible_N] == bucket]
            if inside_KN.shape[1] >= FEWEST_TOKENS:
                weights_ZK[bucket], more, _ = _em(inside_KN, whole_K)
                iterations += more
    nats = -float(gained + top_N[possible_N].mean()) if possible_N.any() else 0.0
    return FittedWeights(weights_ZK, whole_K, iterations, nats)


def _em(probs_KN: Array, weights_K: Array) -> tuple[Array, int, float]:
    """EM from some weights on -> better ones, the number of steps, and the log-likelihood a token."""
    iterations, before = 0, -np.inf
    while probs_KN.shape[1]:
        better_K, now = em_step(probs_KN, weights_K)
        if now - before < GAIN:
            break
        weights_K, before, iterations = better_K, now, iterations + 1
    return weights_K, iterations, before


def em_step(probs_KN: Array, weights_K: Array) -> tuple[Array, float]:
    """One step of EM -> weights that are no worse, and the log-likelihood a token of those given.

    A component's new weight is the mean of its share in each token's probability.
    """
    mixed_N = weights_K @ probs_KN
    return weights_K * (probs_KN @ (1 / mixed_N)) / len(mixed_N), float(np.log(mixed_N).mean())
