"""Linear interpolation of models with one vocabulary, and of caches.

    m(w | prefix) = Σ_k λ_k p_k(w | prefix)        p(w | prefix) = m(w | prefix)^(1/τ) / Σ_v m(v | prefix)^(1/τ)

Jelinek & Mercer, "Interpolated Estimation of Markov Source Parameters from Sparse Data", 1980. The weights λ are one
set for all contexts, or one for each bucket of contexts (`mixture_weights.py`, `context_buckets.py`). The temperature τ
is 1 unless it is fitted: a weighted sum of calibrated distributions is less certain than it should be (Ranjan &
Gneiting, "Combining Probability Forecasts", 2010), and τ corrects that by one number (Guo et al., "On Calibration of
Modern Neural Networks", 2017). With another τ than 1, a token's probability needs those of all tokens. A part may be
any model that implements the contract, including another mixture. Caches are described in `adaptive_cache.py`. In
suffixes K counts the components: the parts, then the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.base.grammar import plural
from chainrule.errors import ConfigError
from chainrule.models.adaptive_cache import AnyCacheConfig, ContinuousCache, UnigramCache, UnigramCacheConfig
from chainrule.models.context_buckets import SingleBucket, choose_bucketing
from chainrule.models.language_model import LanguageModel
from chainrule.models.options import live
from chainrule.registry import MODELS
from chainrule.types import State, SteppingModel, Vocabulary, select_rows

SCORED_VALUES = 1 << 22
"""Largest number of probabilities that one pass of scoring with a temperature computes for each component."""

Cache = UnigramCache | ContinuousCache


class MixtureConfig(BaseModel):
    """Options of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parts: int = Field(1, ge=1, description="number of models, in the folders parts/0, parts/1, …")
    caches: tuple[AnyCacheConfig, ...] = Field((), description="caches, each with its kind and options")
    buckets: bool = Field(False, description="separate weights for each bucket of contexts")
    temperature: float = Field(
        1.0,
        gt=0,
        description="τ: the mixed distribution is raised to the power 1/τ and normalised; below 1 it is sharper",
        json_schema_extra=live(fitted=True),
    )


class MixtureState(NamedTuple):
    """The state of a mixture after a prefix."""

    parts: tuple[State, ...]
    caches: tuple[State, ...]
    newest_B: Tensor | None  # the last token; None: nothing was read yet, not even the eos before a text
    hidden: tuple[Tensor | None, ...]  # for each part the features BD that predict the next token, if they are known
    pending_B: Tensor | None = None  # a token that was scored with a temperature but not read yet


class _PartResult(NamedTuple):
    """What one part computes when it reads tokens."""

    log_probs: Tensor  # BV, BTV or BT
    state: State
    predictors_BTD: Tensor | None  # the features that predicted the tokens; None: no cache needs them
    newest_BD: Tensor | None  # the features that predict the next token; BTD: after each token


@MODELS.register("mixture", family="mixture", task="lm", fitting="mix")
class Mixture(nn.Module, SteppingModel):
    """A weighted sum of models and caches."""

    suggestions = (
        "chainrule mix NGRAM NETWORK --valid TEXT --cache unigram --out RUN",
        "--buckets for separate weights by context",
        "chainrule tune RUN --valid TEXT to fit the temperature",
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
        self.bucketing = choose_bucketing(parts, counts_V) if config.buckets else SingleBucket()
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
        state, tokens_BT = _with_pending(state, tokens_BT)
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
        buckets_B = self.bucketing.bucket_prefix(self.parts, tokens_BT[:, -1], after.parts)
        return self._temper(self._mix(torch.stack(log_probs), buckets_B[:, None])), after

    def _prefill_part(self, number: int, state: MixtureState, tokens_BT: Tensor) -> _PartResult:
        """Append T tokens to the prefixes of one part, with its features if a cache needs them."""
        part, before = self.parts[number], state.parts[number]
        if number not in self._observed:
            log_probs_BV, after = part.prefill(before, tokens_BT)
            return _PartResult(log_probs_BV.float(), after, None, None)
        hidden_BTD, after = self._read_part(number, state, tokens_BT)
        # The features before a token predicted it; those after the last token predict the next one.
        newest_BD = hidden_BTD[:, -1]
        return _PartResult(part.output.log_probs(newest_BD).float(), after, hidden_BTD[:, :-1], newest_BD)

    def _read_part(self, number: int, state: MixtureState, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """The features of one part before the tokens, if they are known, then after each of them -> BTD."""
        hidden_BTD, after = self.parts[number].read(state.parts[number], tokens_BT)
        known_BD = state.hidden[number]
        return hidden_BTD if known_BD is None else torch.cat([known_BD[:, None], hidden_BTD], 1), after

    def extend(self, state: MixtureState, tokens_BT: Tensor) -> tuple[Tensor, MixtureState]:
        """Append T tokens to each prefix in parallel -> log p(. | prefix) after each, BTV, and the new state."""
        (state, read_BT), T = _with_pending(state, tokens_BT), tokens_BT.shape[1]
        results = [self._extend_part(number, state, read_BT) for number in range(len(self.parts))]
        log_probs, caches = [result.log_probs for result in results], []
        for cache, before in zip(self.caches, state.caches, strict=True):
            log_probs_BTV, after = self._extend_cache(cache, before, read_BT, results, state.newest_B is None)
            log_probs.append(log_probs_BTV)
            caches.append(after)
        buckets_BT = self.bucketing.bucket_prefixes(self.parts, read_BT, state.parts, state.newest_B is None)
        newest = tuple(None if result.newest_BD is None else result.newest_BD[:, -1] for result in results)
        states = MixtureState(tuple(result.state for result in results), tuple(caches), tokens_BT[:, -1], newest)
        mixed_BTV = self._mix(torch.stack(log_probs)[:, :, -T:], buckets_BT[:, -T:, None])
        return self._temper(mixed_BTV), states

    def _extend_part(self, number: int, state: MixtureState, tokens_BT: Tensor) -> _PartResult:
        """Append T tokens to the prefixes of one part -> log p after each, with its features if a cache needs them."""
        part, T = self.parts[number], tokens_BT.shape[1]
        if number not in self._observed:
            log_probs_BTV, after = part.extend(state.parts[number], tokens_BT)
            return _PartResult(log_probs_BTV.float(), after, None, None)
        hidden_BTD, after = self._read_part(number, state, tokens_BT)
        newest_BTD = hidden_BTD[:, -T:]
        log_probs_BTV = part.output.log_probs(newest_BTD.flatten(0, 1)).float().unflatten(0, tokens_BT.shape)
        return _PartResult(log_probs_BTV, after, hidden_BTD[:, :-1], newest_BTD)

    def _extend_cache(
        self, cache: Cache, state: State, tokens_BT: Tensor, results: Sequence[_PartResult], first: bool
    ) -> tuple[Tensor, State]:
        """log p of every token by a cache after each of T tokens, BTV, and its state after them."""
        observed, rows, T = results[cache.part or 0], [], tokens_BT.shape[1]
        skipped = T - observed.predictors_BTD.shape[1] if observed.predictors_BTD is not None else 0
        for t in range(T):
            if t or not first:  # else it is the eos before the text, which is not part of the text
                predictor_BTD = observed.predictors_BTD
                before_BTD = None if predictor_BTD is None else predictor_BTD[:, t - skipped : t - skipped + 1]
                state = cache.read(tokens_BT[:, t : t + 1], before_BTD, state)
            rows.append(cache.log_probs(None if observed.newest_BD is None else observed.newest_BD[:, t], state))
        return torch.stack(rows, 1), state

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
        if self.config.temperature != 1:
            return self._score_tempered(tokens_BT, state)
        log_probs_KBT, after = self.score_components(tokens_BT, state)
        return self._mix(log_probs_KBT, self.find_buckets(tokens_BT, state)), after

    def _score_tempered(self, tokens_BT: Tensor, state: MixtureState) -> tuple[Tensor, MixtureState]:
        """`score` with a temperature, from the distribution before each token; the last token stays pending."""
        scores = []
        for block_BT in tokens_BT.split(max(1, SCORED_VALUES // (len(tokens_BT) * self.vocab_size)), 1):
            log_probs_BTV, state = self.predict_tokens(block_BT, state)
            scores.append(log_probs_BTV.gather(2, block_BT[:, :, None])[:, :, 0])
        return torch.cat(scores, 1), state

    def predict_tokens(self, tokens_BT: Tensor, state: MixtureState) -> tuple[Tensor, MixtureState]:
        """log p of every token in the place of each given one -> BTV, and the state in which the last is pending."""
        before_B = torch.full_like(tokens_BT[:, 0], self.eos) if state.pending_B is None else state.pending_B
        inputs_BT = torch.cat([before_B[:, None], tokens_BT[:, :-1]], 1)
        log_probs_BTV, state = self.extend(state._replace(pending_B=None), inputs_BT)
        return log_probs_BTV, state._replace(pending_B=tokens_BT[:, -1])

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
        return self.bucketing.bucket_tokens(self.parts, tokens_BT, previous_BT, state.parts)

    def _mix(self, log_probs_KBN: Tensor, buckets_BN: Tensor) -> Tensor:
        """log Σ_k λ_k p_k of the N entries of each row -> BN; `buckets_BN` may be one column for all. p_k may be 0."""
        log_weights_KBN = self.weights.log()[buckets_BN].movedim(-1, 0)
        return torch.logsumexp(log_probs_KBN + log_weights_KBN, 0)

    def _temper(self, log_probs_BNV: Tensor) -> Tensor:
        """The distributions raised to the power 1/τ and normalised."""
        temperature = self.config.temperature
        return log_probs_BNV if temperature == 1 else (log_probs_BNV / temperature).log_softmax(-1)


def _with_pending(state: MixtureState, tokens_BT: Tensor) -> tuple[MixtureState, Tensor]:
    """The state without its pending token, and the tokens after it."""
    if state.pending_B is None:
        return state, tokens_BT
    return state._replace(pending_B=None), torch.cat([state.pending_B[:, None], tokens_BT], 1)


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
