"""Sampling the next token: temperature, top-k (Fan et al., 2018), top-p (Holtzman et al., 2020), min-p (Nguyen et al.,
2024).

The filters are pure functions of log-probabilities. They set what they remove to -inf and do not renormalise the
rest: the draw normalises once at the end. Tokens that tie with the last one kept are kept too, so the result never
depends on the order in which equal numbers are sorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chainrule.base.lazy import torch
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

MIN_TEMPERATURE = 1e-9
"""Below this, even neighbouring single-precision numbers differ by a hundred nats after scaling: the draw is greedy."""


def apply_temperature(log_probs_BV: Tensor, temperature: float) -> Tensor:
    """Divide log-probabilities by the temperature -> BV; their exponentials are powers of the probabilities."""
    return log_probs_BV if temperature == 1 else log_probs_BV / temperature


def keep_top_k(log_probs_BV: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens of each row, and those that tie with the k-th -> BV with -inf elsewhere."""
    if k >= log_probs_BV.shape[-1]:
        return log_probs_BV
    least_B1 = log_probs_BV.topk(k, -1).values[..., -1:]
    return log_probs_BV.masked_fill(log_probs_BV < least_B1, -math.inf)


SMALLEST_P = 1e-30
"""What a smaller top-p is raised to: rounded to single precision it would be 0 and drop every token."""


def keep_top_p(log_probs_BV: Tensor, p: float) -> Tensor:
    """Keep the fewest most probable tokens whose mass reaches p, and those that tie with the last -> BV with -inf."""
    V, p = log_probs_BV.shape[-1], max(p, SMALLEST_P)
    if p >= 1:
        return log_probs_BV  # a rounded cumulative sum could reach 1 too early and drop the tail
    total_B1 = log_probs_BV.logsumexp(-1, keepdim=True)
    # The most probable tokens usually hold the mass, and finding them is far faster than sorting everything.
    for size in (min(V, 128), min(V, 2048), V):
        head_BK = log_probs_BV.topk(size, -1).values
        mass_BK = (head_BK - total_B1).exp()
        before_BK = mass_BK.cumsum(-1) - mass_BK  # mass of the more probable tokens; 0 for the first, which is kept
        if size == V or bool((before_BK[..., -1] >= p).all()):
            break
    least_B1 = head_BK.masked_fill(before_BK >= p, math.inf).amin(-1, keepdim=True)
    return log_probs_BV.masked_fill(log_probs_BV < least_B1, -math.inf)


def keep_min_p(log_probs_BV: Tensor, p: float) -> Tensor:
    """Keep the tokens that are at least p times as probable as the best of their row -> BV with -inf elsewhere."""
    if p <= 0:
        return log_probs_BV
    least_B1 = log_probs_BV.amax(-1, keepdim=True) + math.log(p)
    return log_probs_BV.masked_fill(log_probs_BV < least_B1, -math.inf)


def draw(log_probs_BV: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one token of each row with probability proportional to exp(log_probs) -> B."""
    shape, device = (*log_probs_BV.shape[:-1], 1), log_probs_BV.device
    return draw_at(log_probs_BV, torch.rand(shape, generator=generator, device=device, dtype=_sum_type(log_probs_BV)))


def draw_at(log_probs_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """The tokens that `draw` gives for these uniform numbers -> B.

    Inverts the distribution function at one uniform number per row, which is far cheaper than V random numbers. The sum
    is in double precision, where the device has it: in single precision the tail of a large vocabulary would vanish.
    """
    below_BV = log_probs_BV.softmax(-1).cumsum(-1, dtype=_sum_type(log_probs_BV))
    # 1 - u is in (0, 1]: a level above 0 and at most the total never selects a token of probability 0.
    return torch.searchsorted(below_BV, (1 - uniform_B1) * below_BV[..., -1:]).squeeze(-1)


def _sum_type(log_probs_BV: Tensor) -> torch.dtype:
    return torch.float32 if log_probs_BV.device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Sample:
    """Draws a token after temperature, then top-k, top-p and min-p. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    generator: torch.Generator | None = None  # None: torch's global one

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}; expected a number of at least 0 (0: greedy)")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}; expected at least 1: leave it out to keep all tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected a number above 0 and at most 1 (1: all tokens)")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p is {self.min_p}; expected a number from 0 (all tokens) to 1")

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log_probs_BV -> a drawn token of each row, B."""
        if self.temperature < MIN_TEMPERATURE:
            return log_probs_BV.argmax(-1)
        return draw(self.filtered(log_probs_BV), self.generator)

    def filtered(self, log_probs_BV: Tensor) -> Tensor:
        """Log-probabilities after temperature, top-k, top-p and min-p -> BV, -inf where a token is removed."""
        scores_BV = apply_temperature(log_probs_BV, self.temperature)
        if self.top_k is not None:
            scores_BV = keep_top_k(scores_BV, self.top_k)
        return keep_min_p(keep_top_p(scores_BV, self.top_p), self.min_p)
