"""Caches: components of a mixture that adapt to the text while they read it, since recent words tend to occur again.

    p(w) ∝ Σ_i decay^(t-1-i) [x_i = w]        UnigramCache, over all tokens read before t
    p(w) ∝ Σ_i exp(θ h_t·h_i) [x_i = w]       ContinuousCache, over the last `window` tokens

Jelinek et al., "A Dynamic Language Model for Speech Recognition", 1991, mix the frequencies of recent words into a
model; Clarkson & Robinson, "Language Model Adaptation Using Mixtures and an Exponentially Decaying Cache", 1997, let
the weight of a word decay with its age. Grave, Joulin & Usunier, "Improving Neural Language Models with a Continuous
Cache", 2016, weight a word by the similarity of the features h_i that predicted it and the current features h_t.

Before the first token both are uniform. A cache is not a model by itself, since it excludes every word that has not
occurred yet. The mixture gives it the tokens and the features of the network it belongs to. States are never modified.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

BLOCK = 256
"""Largest number of columns of a block, whose tokens are compared with each other."""

BLOCK_SCORES = 1 << 23
"""Largest number of pairs of positions that are compared in one pass; it bounds memory."""


class CacheConfig(BaseModel):
    """Options of a cache."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class UnigramCacheConfig(CacheConfig):
    """Options of a unigram cache: recent words, weighted by their age."""

    kind: Literal["unigram"] = "unigram"
    decay: float = Field(0.998, gt=0, le=1, description="factor by which the weight of a word decays with each token")


class ContinuousCacheConfig(CacheConfig):
    """Options of a continuous cache: recent words, weighted by the similarity of their contexts."""

    kind: Literal["continuous"] = "continuous"
    part: int = Field(0, ge=0, description="number of the part whose features are compared")
    theta: float = Field(0.1, gt=0, description="θ, the sharpness of the similarity")
    window: int = Field(2000, ge=1, description="largest number of tokens in the cache")


AnyCacheConfig = Annotated[UnigramCacheConfig | ContinuousCacheConfig, Field(discriminator="kind")]


class UnigramCacheState(NamedTuple):
    """The weights of the words read so far."""

    mass_BV: Tensor  # Σ_i decay^(t-1-i) [x_i = w]
    total_B: Tensor  # the sum over w; 0 before the first token


class UnigramCache:
    """Frequencies of the words read so far, decaying with their age. It ignores the features that it is given."""

    def __init__(self, config: UnigramCacheConfig, vocab_size: int) -> None:
        self.config, self.vocab_size = config, vocab_size
        self.part: int | None = None

    def start(self, batch: int, device: torch.device) -> UnigramCacheState:
        """The state before the first token."""
        return UnigramCacheState(torch.zeros(batch, self.vocab_size, device=device), torch.zeros(batch, device=device))

    def score(
        self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: UnigramCacheState
    ) -> tuple[Tensor, UnigramCacheState]:
        """log p of each token given all before it -> BT, and the state after them."""
        scores = []
        for block_BT in tokens_BT.split(_columns_per_pass(len(tokens_BT), BLOCK), 1):
            scores.append(self._score_block(block_BT, state))
            state = self.read(block_BT, None, state)
        return torch.cat(scores, 1), state

    def _score_block(self, tokens_BT: Tensor, state: UnigramCacheState) -> Tensor:
        T = tokens_BT.shape[1]
        age_TT = _ages(T, T, tokens_BT.device)
        decay_TT = (self.config.decay**age_TT).tril(-1)  # weight of column i when t is scored; 0 for later ones
        carried_T = self.config.decay ** (age_TT[:, 0] + 1)
        same_BTT = tokens_BT[:, :, None] == tokens_BT[:, None, :]
        mass_BT = state.mass_BV.gather(1, tokens_BT) * carried_T + (same_BTT * decay_TT).sum(2)
        return _log_ratio(mass_BT, state.total_B[:, None] * carried_T + decay_TT.sum(1), self.vocab_size)

    def read(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: UnigramCacheState) -> UnigramCacheState:
        """The state after more tokens."""
        T = tokens_BT.shape[1]
        weight_T = self.config.decay ** torch.arange(T - 1, -1, -1, device=tokens_BT.device, dtype=torch.float32)
        mass_BV, total_B = (part * self.config.decay**T for part in state)
        return UnigramCacheState(
            mass_BV.scatter_add(1, tokens_BT, weight_T.expand(tokens_BT.shape)), total_B + weight_T.sum()
        )

    def log_probs(self, hidden_BD: Tensor | None, state: UnigramCacheState) -> Tensor:
        """log p of every token -> BV."""
        return _log_ratio(state.mass_BV, state.total_B[:, None], self.vocab_size)


class ContinuousCacheState(NamedTuple):
    """The last tokens read, and the features that predicted each of them."""

    keys_BLD: Tensor
    tokens_BL: Tensor


class ContinuousCache:
    """The last tokens read, weighted by the similarity of the features that predicted them to the current ones."""

    def __init__(self, config: ContinuousCacheConfig, vocab_size: int, width: int) -> None:
        self.config, self.vocab_size, self.width = config, vocab_size, width
        self.part: int | None = config.part

    def start(self, batch: int, device: torch.device) -> ContinuousCacheState:
        """The state before the first token."""
        keys_BLD = torch.zeros(batch, 0, self.width, device=device)
        return ContinuousCacheState(keys_BLD, torch.zeros(batch, 0, dtype=torch.int64, device=device))

    def score(
        self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: ContinuousCacheState
    ) -> tuple[Tensor, ContinuousCacheState]:
        """log p of each token given all before it and the features that predict it -> BT, and the state after them."""
        assert hidden_BTD is not None
        columns, scores = _columns_per_pass(len(tokens_BT), self.config.window + BLOCK), []
        for block_BT, features_BTD in zip(tokens_BT.split(columns, 1), hidden_BTD.split(columns, 1), strict=True):
            longer = _append(state, block_BT, features_BTD)
            scores.append(self._score_block(block_BT, features_BTD, longer))
            state = self._forget(longer)
        return torch.cat(scores, 1), state

    def _score_block(self, tokens_BT: Tensor, hidden_BTD: Tensor, state: ContinuousCacheState) -> Tensor:
        """Score the newest T tokens of a state; each uses the `window` tokens before it."""
        T, L = tokens_BT.shape[1], state.tokens_BL.shape[1]
        age_TL = _ages(T, L, tokens_BT.device)
        seen_TL = (age_TL >= 0) & (age_TL < self.config.window)
        weight_BTL = self._weights(hidden_BTD, state.keys_BLD, seen_TL)
        same_BTL = tokens_BT[:, :, None] == state.tokens_BL[:, None, :]
        return _log_ratio((weight_BTL * same_BTL).sum(2), weight_BTL.sum(2), self.vocab_size)

    def _weights(self, hidden_BTD: Tensor, keys_BLD: Tensor, seen_TL: Tensor | None = None) -> Tensor:
        """exp(θ h_t·h_i), divided by the largest of its row; 0 for tokens that are not seen -> BTL."""
        scores_BTL = hidden_BTD @ keys_BLD.mT * self.config.theta
        if seen_TL is not None:
            scores_BTL = scores_BTL.masked_fill(~seen_TL, -torch.inf)
        lowest = torch.finfo(scores_BTL.dtype).min  # the largest score of a row that sees nothing would be -inf
        return (scores_BTL - scores_BTL.amax(2, keepdim=True).clamp(min=lowest)).exp()

    def read(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: ContinuousCacheState) -> ContinuousCacheState:
        """The state after more tokens and the features that predicted them."""
        assert hidden_BTD is not None
        return self._forget(_append(state, tokens_BT, hidden_BTD))

    def _forget(self, state: ContinuousCacheState) -> ContinuousCacheState:
        window = self.config.window
        return ContinuousCacheState(state.keys_BLD[:, -window:], state.tokens_BL[:, -window:])

    def log_probs(self, hidden_BD: Tensor | None, state: ContinuousCacheState) -> Tensor:
        """log p of every token, given the current features -> BV."""
        assert hidden_BD is not None
        empty_BV = hidden_BD.new_zeros(len(hidden_BD), self.vocab_size)
        if not state.tokens_BL.shape[1]:
            return _log_ratio(empty_BV, empty_BV, self.vocab_size)
        weight_BL = self.similarities(hidden_BD, state)
        mass_BV = empty_BV.scatter_add(1, state.tokens_BL, weight_BL)
        return _log_ratio(mass_BV, weight_BL.sum(1, keepdim=True), self.vocab_size)

    def similarities(self, hidden_BD: Tensor, state: ContinuousCacheState) -> Tensor:
        """exp(θ h_t·h_i) of each token in the cache, divided by the largest of its row -> BL."""
        return self._weights(hidden_BD[:, None], state.keys_BLD)[:, 0]


def _append(state: ContinuousCacheState, tokens_BT: Tensor, hidden_BTD: Tensor) -> ContinuousCacheState:
    keys_BLD = torch.cat([state.keys_BLD, hidden_BTD], 1)
    return ContinuousCacheState(keys_BLD, torch.cat([state.tokens_BL, tokens_BT], 1))


def _log_ratio(mass: Tensor, total: Tensor, vocab_size: int) -> Tensor:
    """log of mass / total; uniform where the total is 0."""
    return torch.where(total > 0, mass / total, 1 / vocab_size).log()


def _ages(rows: int, length: int, device: torch.device) -> Tensor:
    """The number of tokens between token i and t, t - 1 - i, TL; negative if i is not read before t.

    t runs over the last `rows` of `length` tokens, i over all of them.
    """
    position_L = torch.arange(length, device=device, dtype=torch.float32)
    return position_L[length - rows :, None] - 1 - position_L


def _columns_per_pass(batch: int, compared: int) -> int:
    """The number of columns to score in one pass if each is compared with `compared` others in every row."""
    return max(1, min(BLOCK, BLOCK_SCORES // (batch * compared)))
