"""Minimum risk: the expected loss of the measure over a few drawn translations, made small.

Shen et al., "Minimum Risk Training for Neural Machine Translation", 2016. With C(x) the distinct draws of a source

    Q(y) = p(y | x)^α / Σ_{y' in C(x)} p(y' | x)^α        risk(x) = Σ_{y in C(x)} Q(y) (1 - r(y))

The sharpness α lies far below 1, as a sequence's probability is a product of many: at 1 the most probable candidate
would take all of Q.

Legend: B sources, C candidates of a source, N candidates of all sources, P of those in a portion, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from chainrule.objectives.rewarded import Rewarded, RewardedConfig, portioned, references_of
from chainrule.objectives.rollout import Drawn, drawn_from, forced
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Source


class Candidates(NamedTuple):
    """The distinct translations of each source, those of a source adjacent."""

    drawn: Drawn
    source_N: Tensor
    times_N: Tensor  # how often each was drawn


def distinct(drawn: Drawn, sources: int, reference: Drawn | None, eos: int) -> Candidates:
    """Drawn rows, as many of each source, with the reference of each if there is one -> each once."""
    tokens_NT = drawn.tokens_NT
    source_N = torch.arange(sources, device=tokens_NT.device).repeat_interleave(len(tokens_NT) // sources)
    times_N = torch.ones_like(source_N)
    if reference is not None:
        T = max(tokens_NT.shape[1], reference.tokens_NT.shape[1])
        both = [F.pad(one_NT, (0, T - one_NT.shape[1]), value=eos) for one_NT in (tokens_NT, reference.tokens_NT)]
        tokens_NT, own_B = torch.cat(both), torch.arange(sources, device=tokens_NT.device)
        source_N, times_N = torch.cat([source_N, own_B]), torch.cat([times_N, torch.zeros_like(own_B)])
    rows_NX, which_N = torch.unique(torch.cat([source_N[:, None], tokens_NT], 1), dim=0, return_inverse=True)
    times_N = times_N.new_zeros(len(rows_NX)).index_add(0, which_N, times_N)
    return Candidates(drawn_from(rows_NX[:, 1:], eos), rows_NX[:, 0], times_N)


def risks(log_probs_N: Tensor, costs_N: Tensor, source_N: Tensor, sharpness: float) -> Tensor:
    """The expected cost of each source's candidates under p^sharpness, normalised over them -> B."""
    _, which_N = source_N.unique(return_inverse=True)
    scores_N = sharpness * log_probs_N
    none_B = scores_N.new_zeros(int(which_N.max()) + 1)
    most_B = none_B.scatter_reduce(0, which_N, scores_N.detach(), "amax", include_self=False)
    mass_N = (scores_N - most_B[which_N]).exp()
    return none_B.index_add(0, which_N, mass_N * costs_N) / none_B.index_add(0, which_N, mass_N)


@OBJECTIVES.register("minimum-risk")
class MinimumRisk(Rewarded):
    """The expected loss of a measure over the distinct draws of each source."""

    name = "minimum-risk"
    config: Config

    class Config(RewardedConfig):
        """Which candidates there are, and how their probabilities weigh."""

        samples: int = Field(8, ge=1, description="translations drawn of each source")
        sharpness: float = Field(0.005, gt=0, description="α: 0 weighs candidates equally, 1 by their probability")
        with_reference: bool = Field(False, description="the reference is a candidate too")

    def portions(self, model: Any, batch: Batch, source: Source) -> Iterator[Tensor]:
        c, eos, B = self.config, model.eos, len(source.tokens_BS)
        drawn = self.draw(model, batch, source, samples=c.samples)
        found = distinct(drawn, B, references_of(batch, eos) if c.with_reference else None, eos)
        rewards_N = self.rewards(found.drawn, batch, found.source_N, eos)
        lengths, risk = found.drawn.weights_NT.sum(1).long().tolist(), 0.0
        for rows in portioned(lengths, found.source_N.tolist(), model.output.size):
            row_P = torch.tensor(rows, device=rewards_N.device)
            log_probs_P = forced(model, source, found.source_N[row_P], found.drawn.rows(row_P), eos)
            portion = risks(log_probs_P, 1 - rewards_N[row_P], found.source_N[row_P], c.sharpness).sum()
            risk += float(portion.detach())
            # The gradient of a risk is α Σ Q(y) (cost(y) - risk) ∇ log p(y): without its α it is a policy gradient in
            # which Q stands for the draw and the risk for the baseline, and as large as one.
            yield portion / c.sharpness
        drawn_reward = (rewards_N * found.times_N).sum() / found.times_N.sum()
        self.figures = {"reward": float(drawn_reward), "risk": risk / B}
