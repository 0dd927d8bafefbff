"""Minimum risk: minimises the expected cost (1 - reward) over a few sampled translations.

Shen et al., "Minimum Risk Training for Neural Machine Translation", 2016. With C(x) the distinct samples of a source

    Q(y) = p(y | x)^α / Σ_{y' in C(x)} p(y' | x)^α        risk(x) = Σ_{y in C(x)} Q(y) (1 - r(y))

The sharpness α is far below 1, since the probability of a sequence is a product of many: at 1 the most probable
candidate would have nearly all of Q.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from chainrule.objectives.network import SteppingNetwork
from chainrule.objectives.reward_objective import RewardConfig, RewardObjective, references_of, split_into_chunks
from chainrule.objectives.rollout import Samples, make_samples, score_samples
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Source


class TranslationCandidates(NamedTuple):
    """The distinct translations of each source; those of a source are adjacent."""

    samples: Samples
    source_R: Tensor
    count_R: Tensor  # how often each was sampled


def distinct_candidates(samples: Samples, sources: int, references: Samples | None, eos: int) -> TranslationCandidates:
    """The distinct rows among samples, equally many per source, and the references of the sources if they are given."""
    tokens_RT = samples.tokens_RT
    source_R = torch.arange(sources, device=tokens_RT.device).repeat_interleave(len(tokens_RT) // sources)
    count_R = torch.ones_like(source_R)
    if references is not None:
        T = max(tokens_RT.shape[1], references.tokens_RT.shape[1])
        both = [F.pad(part_RT, (0, T - part_RT.shape[1]), value=eos) for part_RT in (tokens_RT, references.tokens_RT)]
        tokens_RT, source_B = torch.cat(both), torch.arange(sources, device=tokens_RT.device)
        source_R, count_R = torch.cat([source_R, source_B]), torch.cat([count_R, torch.zeros_like(source_B)])
    rows_RX, index_R = torch.unique(torch.cat([source_R[:, None], tokens_RT], 1), dim=0, return_inverse=True)
    count_R = count_R.new_zeros(len(rows_RX)).index_add(0, index_R, count_R)
    return TranslationCandidates(make_samples(rows_RX[:, 1:], eos), rows_RX[:, 0], count_R)


def compute_risks(log_probs_R: Tensor, costs_R: Tensor, source_R: Tensor, sharpness: float) -> Tensor:
    """The expected cost of each source's candidates under p^sharpness, normalised over them -> B."""
    _, index_R = source_R.unique(return_inverse=True)
    scores_R = sharpness * log_probs_R
    zeros_B = scores_R.new_zeros(int(index_R.max()) + 1)
    max_B = zeros_B.scatter_reduce(0, index_R, scores_R.detach(), "amax", include_self=False)
    mass_R = (scores_R - max_B[index_R]).exp()
    return zeros_B.index_add(0, index_R, mass_R * costs_R) / zeros_B.index_add(0, index_R, mass_R)


@OBJECTIVES.register("minimum-risk")
class MinimumRisk(RewardObjective):
    """The expected cost of the distinct samples of each source."""

    name = "minimum-risk"
    config: Config

    class Config(RewardConfig):
        """The candidates, and how their probabilities are weighted."""

        samples: int = Field(8, ge=1, description="translations sampled per source")
        sharpness: float = Field(
            0.005, gt=0, description="α: near 0 candidates have equal weights, at 1 their probabilities"
        )
        with_reference: bool = Field(False, description="add the reference to the candidates")

    def chunk_losses(self, model: SteppingNetwork, batch: Batch, source: Source) -> Iterator[Tensor]:
        c, eos, B = self.config, model.eos, len(source.tokens_BS)
        sampled = self.sample(model, batch, source, samples=c.samples)
        references = references_of(batch, eos) if c.with_reference else None
        samples, source_R, count_R = distinct_candidates(sampled, B, references, eos)
        rewards_R = self.compute_rewards(samples, batch, source_R, eos)
        lengths, risk = samples.weights_RT.sum(1).long().tolist(), 0.0
        for chunk in split_into_chunks(lengths, source_R.tolist(), model.output.size):
            rows_M = torch.tensor(chunk, device=rewards_R.device)
            log_probs_M = score_samples(model, source, source_R[rows_M], samples.select(rows_M), eos)
            chunk_risk = compute_risks(log_probs_M, 1 - rewards_R[rows_M], source_R[rows_M], c.sharpness).sum()
            risk += float(chunk_risk.detach())
            # The gradient of a risk is α Σ Q(y) (cost(y) - risk) ∇ log p(y). Divided by α it is a policy gradient with
            # Q as the sampling distribution and the risk as the baseline, and of the same size.
            yield chunk_risk / c.sharpness
        sample_reward = (rewards_R * count_R).sum() / count_R.sum()
        self.figures = {"reward": float(sample_reward), "risk": risk / B}
