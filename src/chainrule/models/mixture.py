"""Linear interpolation of models with one vocabulary, and of caches.

    p(w | prefix) = Σ_k λ_k p_k(w | prefix)

Jelinek & Mercer, "Interpolated Estimation of Markov Source Parameters from Sparse Data", 1980. EM finds the weights λ
under which a held-out text is most probable: one set for all contexts, or one set for each bucket of contexts. A part
may be any model that implements the contract, including another mixture. Caches are described in `adaptive_cache.py`.
In suffixes K counts the components: the parts, then the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.base.arrays import Array
from chainrule.base.grammar import plural
from chainrule.errors import ConfigError
from chainrule.models.adaptive_cache import AnyCacheConfig, ContinuousCache, UnigramCache, UnigramCacheConfig
from chainrule.models.language_model import LanguageModel
from chainrule.registry import MODELS
from chainrule.types import ContextDepths, State, SteppingModel, Vocabulary, select_rows

MAX_BUCKETS = 12
"""Longer or more frequent contexts share the last bucket."""

MIN_BUCKET_TOKENS = 100
"""A bucket with fewer tokens has no weights of its own."""

MIN_GAIN = 1e-7
"""EM ends when a step improves log p by less, in nats per token."""

Cache = UnigramCache | ContinuousCache


class MixtureConfig(BaseModel):
    """Options of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parts: int = Field(1, ge=1, description="number of models, in the folders parts/0, parts/1, …")
    caches: tuple[AnyCacheConfig, ...] = Field((), description="caches, each with its kind and options")
    buckets: bool = Field(False, description="separate weights for each bucket of contexts")


class MixtureState(NamedTuple):
    """The state of a mixture after a prefix."""

    parts: tuple[State, ...]
    caches: tuple[State, ...]
    newest_B: Tensor | None  # the last token; None: nothing was read yet, not even the eos before a text
    hidden: tuple[Tensor | None, ...]  # for each part the features BD that predict the next token, if they are known


class _PartResult(NamedTuple):
    """What one part computes when it reads tokens."""

    log_probs: Tensor  # BV or BT
    state: State
    predictors_BTD: Tensor | None  # the features that predicted the tokens; None: no cache needs them
    newest_BD: Tensor | None  # the features that predict the next token


@MODELS.register("mixture", family="mixture", task="lm", fitting="mix")
class Mixture(nn.Module, SteppingModel):
    """A weighted sum of models and caches."""

    suggestions = (
        "chainrule mix NGRAM NETWORK --valid TEXT --cache unigram --out RUN",
        "--buckets for separate weights by context",
    )

    Config: ClassVar[type[MixtureConfig]] = MixtureConfig
    has_parts = True
    unigram_counts: Tensor
    weights: Tensor

    def __init__(
        self,
        config: MixtureConfig,
        vocabulary: Vocabulary,
        parts: Sequence[SteppingModel],
        weights_ZK: Tensor | None = None,
    ) -> None:
        """Without `weights_ZK`, all components have the same weight."""
        super().__init__()
        self.config, self.eos, self.vocab_size = config, vocabulary.eos, vocabulary.size
        self.parts: list[Any] = list(parts)
        self.modules_of_parts = nn.ModuleList(part for part in self.parts if isinstance(part, nn.Module))
        self.caches: list[Any] = [_make_cache(cache, parts, vocabulary.size) for cache in config.caches]
        self._observed = {cache.part for cache in self.caches}  # the parts whose features a cache needs
        counts_V = torch.as_tensor(vocabulary.counts_V, dtype=torch.int64)
        self.register_buffer("unigram_counts", counts_V)
        self.bucketing = _choose_bucketing(parts, counts_V) if config.buckets else SingleBucket()
        shape = (self.bucketing.count, len(parts) + len(self.caches))
        # Single precision: some devices do not support double precision.
        weights_ZK = torch.full(shape, 1 / shape[1]) if weights_ZK is None else weights_ZK.float()
        if weights_ZK.shape != shape:
            raise ConfigError(
                f"the weights have the shape {tuple(weights_ZK.shape)}, but {plural(shape[0], 'bucket')} of {shape[1]} "
                f"components need {shape}; mix again"
            )
        self.register_buffer("weights", weights_ZK)
        # A component that adapts to the text must read it from its beginning to its end.
        self.tracks = 1 if self.caches or any(part.tracks == 1 for part in self.parts) else None

    @property
    def parameter_count(self) -> int:
        """The number of values of all parts."""
        return sum(part.parameter_count for part in self.parts)

    # Stepping

    def start(self, batch: int) -> MixtureState:
        """The empty prefix."""
        caches = tuple(cache.start(batch, self.weights.device) for cache in self.caches)
        return MixtureState(tuple(part.start(batch) for part in self.parts), caches, None, (None,) * len(self.parts))

    def step(self, state: MixtureState, token_B: Tensor) -> tuple[Tensor, MixtureState]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: MixtureState, tokens_BT: Tensor) -> tuple[Tensor, MixtureState]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix) after the last, BV, and the new state."""
        results = [self._prefill_part(number, state, tokens_BT) for number in range(len(self.parts))]
        # The first token of all is the eos before the text, which is not part of the text.
        new_BT = tokens_BT if state.newest_B is not None else tokens_BT[:, 1:]
        log_probs, caches = [result.log_probs for result in results], []
        for cache, before in zip(self.caches, state.caches, strict=True):
            observed = results[cache.part or 0]  # a cache without a part ignores the features
            caches.append(cache.read(new_BT, observed.predictors_BTD, before))
            log_probs.append(cache.log_probs(observed.newest_BD, caches[-1]))
        newest = tuple(result.newest_BD for result in results)
        after = MixtureState(tuple(result.state for result in results), tuple(caches), tokens_BT[:, -1], newest)
        return self._mix(torch.stack(log_probs), self.bucketing.bucket_prefix(self.parts, after)[:, None]), after

    def _prefill_part(self, number: int, state: MixtureState, tokens_BT: Tensor) -> _PartResult:
        """Append T tokens to the prefixes of one part, with its features if a cache needs them."""
        part, before = self.parts[number], state.parts[number]
        if number not in self._observed:
            log_probs_BV, after = part.prefill(before, tokens_BT)
            return _PartResult(log_probs_BV.float(), after, None, None)
        hidden_BTD, after = part.read(before, tokens_BT)
        newest_BD, known_BD = hidden_BTD[:, -1], state.hidden[number]
        if known_BD is not None:
            hidden_BTD = torch.cat([known_BD[:, None], hidden_BTD], 1)
        # The features before a token predicted it; those after the last token predict the next one.
        return _PartResult(part.output.log_probs(newest_BD).float(), after, hidden_BTD[:, :-1], newest_BD)

    def select(self, state: MixtureState, rows_K: Tensor) -> MixtureState:
        """Row k of the result is row rows_K[k] of the state."""
        parts = tuple(part.select(before, rows_K) for part, before in zip(self.parts, state.parts, strict=True))
        return MixtureState(parts, *(select_rows(rest, rows_K) for rest in state[1:]))

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(tokens_BT.shape[0]))[0]

    def score(self, tokens_BT: Tensor, state: MixtureState) -> tuple[Tensor, MixtureState]:
        """log p of each token given the state and all tokens before it -> BT, and the state after them."""
        log_probs_KBT, after = self.score_components(tokens_BT, state)
        return self._mix(log_probs_KBT, self.find_buckets(tokens_BT, state)), after

    def score_components(self, tokens_BT: Tensor, state: MixtureState) -> tuple[Tensor, MixtureState]:
        """log p of each token by each component separately -> KBT, and the state after the tokens."""
        results = [self._score_part(number, state, tokens_BT) for number in range(len(self.parts))]
        log_probs, caches = [result.log_probs for result in results], []
        for cache, before in zip(self.caches, state.caches, strict=True):
            log_probs_BT, after = cache.score(tokens_BT, results[cache.part or 0].predictors_BTD, before)
            log_probs.append(log_probs_BT)
            caches.append(after)
        newest = (None,) * len(results)  # unknown: the last token of each part is pending
        states = tuple(result.state for result in results)
        return torch.stack(log_probs), MixtureState(states, tuple(caches), tokens_BT[:, -1], newest)

    def _score_part(self, number: int, state: MixtureState, tokens_BT: Tensor) -> _PartResult:
        """log p of each token by one part, with its features if a cache needs them."""
        part, before = self.parts[number], state.parts[number]
        if number not in self._observed:
            log_probs_BT, after = part.score(tokens_BT, before)
            return _PartResult(log_probs_BT.float(), after, None, None)
        hidden_BTD, after = part.predictors(tokens_BT, before)
        log_probs_N = part.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        return _PartResult(log_probs_N.view(tokens_BT.shape).float(), after, hidden_BTD, None)

    def find_buckets(self, tokens_BT: Tensor, state: MixtureState) -> Tensor:
        """The bucket of the context of each token, which selects the weights -> int64 BT."""
        newest_B = torch.full_like(tokens_BT[:, 0], self.eos) if state.newest_B is None else state.newest_B
        previous_BT = torch.cat([newest_B[:, None], tokens_BT[:, :-1]], 1)
        return self.bucketing.bucket_tokens(self.parts, tokens_BT, previous_BT, state)

    def _mix(self, log_probs_KBN: Tensor, buckets_BN: Tensor) -> Tensor:
        """log Σ_k λ_k p_k of the N entries of each row -> BN; `buckets_BN` may be one column for all. p_k may be 0."""
        log_weights_KBN = self.weights.log()[buckets_BN].movedim(-1, 0)
        return torch.logsumexp(log_probs_KBN + log_weights_KBN, 0)


# Buckets


class SingleBucket(nn.Module):
    """The same weights for all contexts."""

    count = 1

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, state: MixtureState
    ) -> Tensor:
        """The bucket of the context of each token, given the state before them -> int64 BT."""
        return torch.zeros_like(tokens_BT)

    def bucket_prefix(self, parts: Sequence[SteppingModel], state: MixtureState) -> Tensor:
        """The bucket of a prefix, given the state after it -> int64 B."""
        assert state.newest_B is not None
        return torch.zeros_like(state.newest_B)


class DepthBuckets(nn.Module):
    """Buckets by the length of the longest context that an n-gram part has seen in training."""

    count = MAX_BUCKETS

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, state: MixtureState
    ) -> Tensor:
        depth_BT = self._context_depths(parts).depths(tokens_BT, state.parts[self.part])
        return depth_BT.clamp(max=self.count - 1).to(tokens_BT.device)

    def bucket_prefix(self, parts: Sequence[SteppingModel], state: MixtureState) -> Tensor:
        assert state.newest_B is not None
        depth_B = self._context_depths(parts).depth_rows(state.parts[self.part])
        return depth_B.clamp(max=self.count - 1).to(state.newest_B.device)

    def _context_depths(self, parts: Sequence[SteppingModel]) -> ContextDepths:
        depths = parts[self.part].context_depths
        assert depths is not None
        return depths


class CountBuckets(nn.Module):
    """Buckets by the number of occurrences of the last token in the training text: ⌊log2(1 + count)⌋."""

    count = MAX_BUCKETS
    bucket_V: Tensor

    def __init__(self, counts_V: Tensor) -> None:
        super().__init__()
        most = 1 << (self.count - 1)
        exponent_V = torch.frexp((1 + counts_V).clamp(max=most).double()).exponent.long() - 1
        self.register_buffer("bucket_V", exponent_V, persistent=False)

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, state: MixtureState
    ) -> Tensor:
        return self.bucket_V[previous_BT]

    def bucket_prefix(self, parts: Sequence[SteppingModel], state: MixtureState) -> Tensor:
        return self.bucket_V[state.newest_B]


def _choose_bucketing(parts: Sequence[SteppingModel], counts_V: Tensor) -> DepthBuckets | CountBuckets:
    """By the depth of the first part that knows it, otherwise by the count of the last token."""
    for number, part in enumerate(parts):
        if part.context_depths is not None:
            return DepthBuckets(number)
    return CountBuckets(counts_V)


# Caches


def _make_cache(config: AnyCacheConfig, parts: Sequence[SteppingModel], vocab_size: int) -> Cache:
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
    """The weights that EM found."""

    weights_ZK: Array  # float64
    overall_K: Array  # without buckets
    iterations: int
    nats: float  # mean -log p of a token with `overall_K`, over tokens to which some component gives a probability


def fit_weights(log_probs_KN: Array, buckets_N: Array | None = None, buckets: int = 1) -> FittedWeights:
    """The weights under which the tokens are most probable, by EM; each bucket with enough tokens has its own."""
    top_N = log_probs_KN.max(0).astype(np.float64)
    possible_N = np.isfinite(top_N)  # tokens with p = 0 under all components do not depend on the weights
    probs_KN = np.exp(log_probs_KN[:, possible_N] - top_N[possible_N])
    overall_K, iterations, log_prob = _em(probs_KN, np.full(len(probs_KN), 1 / len(probs_KN)))
    weights_ZK = np.tile(overall_K, (buckets, 1))
    if buckets_N is not None and buckets > 1:
        for bucket in range(buckets):
            inside_KM = probs_KN[:, buckets_N[possible_N] == bucket]
            if inside_KM.shape[1] >= MIN_BUCKET_TOKENS:
                weights_ZK[bucket], more, _ = _em(inside_KM, overall_K)
                iterations += more
    nats = -float(log_prob + top_N[possible_N].mean()) if possible_N.any() else 0.0
    return FittedWeights(weights_ZK, overall_K, iterations, nats)


def _em(probs_KN: Array, weights_K: Array) -> tuple[Array, int, float]:
    """EM from initial weights -> the weights, the number of steps, and the mean log p of a token."""
    iterations, before = 0, -np.inf
    while probs_KN.shape[1]:
        better_K, now = em_step(probs_KN, weights_K)
        if now - before < MIN_GAIN:
            break
        weights_K, before, iterations = better_K, now, iterations + 1
    return weights_K, iterations, before


def em_step(probs_KN: Array, weights_K: Array) -> tuple[Array, float]:
    """One step of EM -> weights that are at least as good, and the mean log p of a token with the given weights.

    The new weight of a component is its mean share of the probability of a token.
    """
    mixed_N = weights_K @ probs_KN
    return weights_K * (probs_KN @ (1 / mixed_N)) / len(mixed_N), float(np.log(mixed_N).mean())
