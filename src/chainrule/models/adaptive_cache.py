"""Components that learn while they read: what was said a while ago is likely to be said again.

Jelinek et al., "A Dynamic Language Model for Speech Recognition", 1991, mix the frequencies of the recent words into a
model; Clarkson & Robinson, "Language Model Adaptation Using Mixtures and an Exponentially Decaying Cache", 1997, let a
word count less the longer ago it was:

    p(w) ∝ Σ_i decay^(t-1-i) [x_i = w]                     UnigramCache, over all that was read before t

Grave, Joulin & Usunier, "Improving Neural Language Models with a Continuous Cache", 2016, let a word count more the
more the features that predicted it are like the features of now:

    p(w) ∝ Σ_i exp(θ h_t·h_i) [x_i = w]                    ContinuousCache, over the last `window` tokens

Both are uniform before anything was read. A cache is no model by itself (it rules out every word that has not come
yet): it is a component of a mixture, which tells it the tokens and the features of the network it belongs to. A given
state is never changed, so it can be used again.

Legend: B batch, T time, V vocabulary, D width, L tokens remembered.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

BLOCK = 256
"""Columns scored against one another at once."""

BLOCK_SCORES = 1 << 23
"""Most pairs of positions that are compared at once: it bounds memory."""


class CacheConfig(BaseModel):
    """The options of a cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class UnigramCacheConfig(CacheConfig):
    """Recent words, the newer the heavier."""

    kind: Literal["unigram"] = "unigram"
    decay: float = Field(0.998, gt=0, le=1, description="weight of a word for each token that has come since")


class ContinuousCacheConfig(CacheConfig):
    """Recent words, the heavier the more their context was like this one."""

    kind: Literal["continuous"] = "continuous"
    part: int = Field(0, ge=0, description="the part whose features are compared")
    theta: float = Field(0.1, gt=0, description="how much likeness counts")
    window: int = Field(2000, ge=1, description="most tokens remembered")


AnyCacheConfig = Annotated[UnigramCacheConfig | ContinuousCacheConfig, Field(discriminator="kind")]


class Masses(NamedTuple):
    """What a unigram cache remembers."""

    mass_BV: Tensor  # Σ_i decay^(t-1-i) [x_i = w]
    total_B: Tensor  # its sum over w; 0 before anything was read


class UnigramCache:
    """Frequencies of the words read so far, decaying with their age."""

    def __init__(self, config: UnigramCacheConfig, vocab_size: int) -> None:
        self.config, self.vocab_size = config, vocab_size
        self.part: int | None = None

    def start(self, batch: int, device: torch.device) -> Masses:
        """Nothing read yet."""
        return Masses(torch.zeros(batch, self.vocab_size, device=device), torch.zeros(batch, device=device))

    def score(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: Masses) -> tuple[Tensor, Masses]:
        """log p of each token given all before it -> BT, and the state after them."""
        scores = []
        for block_BT in tokens_BT.split(_columns(len(tokens_BT), BLOCK), 1):
            scores.append(self._score_block(block_BT, state))
            state = self.read(block_BT, None, state)
        return torch.cat(scores, 1), state

    def _score_block(self, tokens_BT: Tensor, state: Masses) -> Tensor:
        T = tokens_BT.shape[1]
        age_TT = _ages(T, T, tokens_BT.device)
        decay_TT = (self.config.decay**age_TT).tril(-1)  # of column i when t is scored: what comes later weighs nothing
        carried_T = self.config.decay ** (age_TT[:, 0] + 1)
        same_BTT = tokens_BT[:, :, None] == tokens_BT[:, None, :]
        mass_BT = state.mass_BV.gather(1, tokens_BT) * carried_T + (same_BTT * decay_TT).sum(2)
        return _log_share(mass_BT, state.total_B[:, None] * carried_T + decay_TT.sum(1), self.vocab_size)

    def read(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: Masses) -> Masses:
        """The state after more tokens."""
        T = tokens_BT.shape[1]
        weight_T = self.config.decay ** torch.arange(T - 1, -1, -1, device=tokens_BT.device, dtype=torch.float32)
        mass_BV, total_B = (kept * self.config.decay**T for kept in state)
        return Masses(mass_BV.scatter_add(1, tokens_BT, weight_T.expand(tokens_BT.shape)), total_B + weight_T.sum())

    def row(self, hidden_BD: Tensor | None, state: Masses) -> Tensor:
        """log p of every token -> BV."""
        return _log_share(state.mass_BV, state.total_B[:, None], self.vocab_size)


class Memory(NamedTuple):
    """What a continuous cache remembers."""

    keys_BLD: Tensor  # the features that predicted
    tokens_BL: Tensor  # what then came


class ContinuousCache:
    """The last words read, weighed by how alike the features that predicted them are to those of now."""

    def __init__(self, config: ContinuousCacheConfig, vocab_size: int, width: int) -> None:
        self.config, self.vocab_size, self.width = config, vocab_size, width
        self.part: int | None = config.part

    def start(self, batch: int, device: torch.device) -> Memory:
        """Nothing read yet."""
        keys_BLD = torch.zeros(batch, 0, self.width, device=device)
        return Memory(keys_BLD, torch.zeros(batch, 0, dtype=torch.int64, device=device))

    def score(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: Memory) -> tuple[Tensor, Memory]:
        """log p of each token given all before it and the features that predict it -> BT, and the state after them."""
        assert hidden_BTD is not None
        columns, scores = _columns(len(tokens_BT), self.config.window + BLOCK), []
        for block_BT, features_BTD in zip(tokens_BT.split(columns, 1), hidden_BTD.split(columns, 1), strict=True):
            longer = _append(state, block_BT, features_BTD)
            scores.append(self._score_block(block_BT, features_BTD, longer))
            state = self._forget(longer)
        return torch.cat(scores, 1), state

    def _score_block(self, tokens_BT: Tensor, hidden_BTD: Tensor, memory: Memory) -> Tensor:
        """The block's own tokens are the newest of the memory; each sees the `window` tokens before it."""
        T, L = tokens_BT.shape[1], memory.tokens_BL.shape[1]
        age_TL = _ages(T, L, tokens_BT.device)
        seen_TL = (age_TL >= 0) & (age_TL < self.config.window)
        weight_BTL = self._weights(hidden_BTD, memory.keys_BLD, seen_TL)
        same_BTL = tokens_BT[:, :, None] == memory.tokens_BL[:, None, :]
        return _log_share((weight_BTL * same_BTL).sum(2), weight_BTL.sum(2), self.vocab_size)

    def _weights(self, hidden_BTD: Tensor, keys_BLD: Tensor, seen_TL: Tensor | None = None) -> Tensor:
        """exp(θ h_t·h_i) over the largest of its row, 0 for what is not seen -> BTL."""
        scores_BTL = hidden_BTD @ keys_BLD.mT * self.config.theta
        if seen_TL is not None:
            scores_BTL = scores_BTL.masked_fill(~seen_TL, -torch.inf)
        least = torch.finfo(scores_BTL.dtype).min  # a row that sees nothing has no largest
        return (scores_BTL - scores_BTL.amax(2, keepdim=True).clamp(min=least)).exp()

    def read(self, tokens_BT: Tensor, hidden_BTD: Tensor | None, state: Memory) -> Memory:
        """The state after more tokens and the features that predicted them."""
        assert hidden_BTD is not None
        return self._forget(_append(state, tokens_BT, hidden_BTD))

    def _forget(self, memory: Memory) -> Memory:
        window = self.config.window
        return Memory(memory.keys_BLD[:, -window:], memory.tokens_BL[:, -window:])

    def row(self, hidden_BD: Tensor | None, state: Memory) -> Tensor:
        """log p of every token, given the features of now -> BV."""
        assert hidden_BD is not None
        empty_BV = hidden_BD.new_zeros(len(hidden_BD), self.vocab_size)
        if not state.tokens_BL.shape[1]:
            return _log_share(empty_BV, empty_BV, self.vocab_size)
        weight_BL = self._weights(hidden_BD[:, None], state.keys_BLD)[:, 0]
        mass_BV = empty_BV.scatter_add(1, state.tokens_BL, weight_BL)
        return _log_share(mass_BV, weight_BL.sum(1, keepdim=True), self.vocab_size)


def _append(memory: Memory, tokens_BT: Tensor, hidden_BTD: Tensor) -> Memory:
    return Memory(torch.cat([memory.keys_BLD, hidden_BTD], 1), torch.cat([memory.tokens_BL, tokens_BT], 1))


def _log_share(mass: Tensor, total: Tensor, vocab_size: int) -> Tensor:
    """log of mass / total, uniform where there is nothing to share."""
    return torch.where(total > 0, mass / total, 1 / vocab_size).log()


def _ages(rows: int, length: int, device: torch.device) -> Tensor:
    """How many tokens have come since token i when t is predicted, below 0 if i is not read yet: t - 1 - i, TL.

    t goes over the last `rows` of `length` tokens, i over all of them.
    """
    place_L = torch.arange(length, device=device, dtype=torch.float32)
    return place_L[length - rows :, None] - 1 - place_L


def _columns(batch: int, compared: int) -> int:
    """Columns to score at once when each is compared with so many others in each row."""
    return max(1, min(BLOCK, BLOCK_SCORES // (batch * compared)))
