"""Policy gradient: translations with a better reward than expected become more probable, worse ones less.

Williams, "Simple statistical gradient-following algorithms", 1992 (REINFORCE). The baseline, or expected reward, is
that of the model's greedy translation (Rennie et al., "Self-critical Sequence Training for Image Captioning", 2017), or
the mean of the other samples. For samples y of x

    ∇ E[r(y)] = E[(r(y) - b(x)) ∇ log p(y | x)]        for any b that does not depend on y
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.objectives.network import SteppingNetwork
from chainrule.objectives.reward_objective import RewardConfig, RewardObjective, split_into_chunks
from chainrule.objectives.rollout import score_samples
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Source


def leave_one_out_mean(rewards_BK: Tensor) -> Tensor:
    """The mean reward of the other samples of the same source -> BK."""
    return (rewards_BK.sum(1, keepdim=True) - rewards_BK) / (rewards_BK.shape[1] - 1)


@OBJECTIVES.register("policy-gradient")
class PolicyGradient(RewardObjective):
    """REINFORCE on a metric, with the greedy translation or the other samples as the baseline."""

    name = "policy-gradient"
    config: Config

    class Config(RewardConfig):
        """The number of samples, and their baseline."""

        samples: int = Field(1, ge=1, description="translations sampled per source")
        baseline: Literal["greedy", "mean"] = Field(
            "greedy", description="baseline of the rewards: the greedy translation, or the mean of the other samples"
        )

        @model_validator(mode="after")
        def _check_baseline(self) -> PolicyGradient.Config:
            if self.baseline == "mean" and self.samples < 2:
                raise ConfigError(
                    f"objective.samples is {self.samples}; expected at least 2 with objective.baseline=mean: raise "
                    "objective.samples, or use objective.baseline=greedy"
                )
            return self

    def chunk_losses(self, model: SteppingNetwork, batch: Batch, source: Source) -> Iterator[Tensor]:
        c, eos, with_greedy = self.config, model.eos, self.config.baseline == "greedy"
        samples = self.sample(model, batch, source, samples=c.samples, greedy=with_greedy)
        W = c.samples + with_greedy
        source_R = torch.arange(len(samples.tokens_RT), device=samples.tokens_RT.device) // W
        rewards_BW = self.compute_rewards(samples, batch, source_R, eos).view(-1, W)
        weights_R = self._advantages(rewards_BW).flatten() / c.samples
        # A row without advantage has no gradient. At least one row is kept, so that every parameter has a gradient.
        kept_K = weights_R.nonzero()[:, 0] if weights_R.any() else source_R[:1]
        lengths = samples.weights_RT[kept_K].sum(1).long().tolist()
        for chunk in split_into_chunks(lengths, range(len(lengths)), model.output.size):
            rows_M = kept_K[chunk]
            log_probs_M = score_samples(model, source, source_R[rows_M], samples.select(rows_M), eos)
            yield -(weights_R[rows_M] * log_probs_M).sum()

    def _advantages(self, rewards_BW: Tensor) -> Tensor:
        """How much each reward exceeds the baseline -> BW; 0 for the greedy translation, which is not a sample."""
        if self.config.baseline == "mean":
            self.figures = {"reward": float(rewards_BW.mean())}
            return rewards_BW - leave_one_out_mean(rewards_BW)
        greedy_B1, sampled_BK = rewards_BW[:, :1], rewards_BW[:, 1:]
        self.figures = {"reward": float(sampled_BK.mean()), "greedy_reward": float(greedy_B1.mean())}
        return rewards_BW - greedy_B1
