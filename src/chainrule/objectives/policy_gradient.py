"""Policy gradient: translations that are better than expected become more probable, worse ones less.

Williams, "Simple statistical gradient-following algorithms", 1992 (REINFORCE); with the model's own greedy translation
as what is expected: Rennie et al., "Self-critical Sequence Training for Image Captioning", 2017. For draws y of x

    ∇ E[r(y)] = E[(r(y) - b(x)) ∇ log p(y | x)]        for any b that does not depend on y

Legend: B sources, W rows of a source, K draws of a source, N = B·W rows, P rows of a portion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.objectives.rewarded import Rewarded, RewardedConfig, portioned
from chainrule.objectives.rollout import forced
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Source


def others_mean(rewards_BK: Tensor) -> Tensor:
    """The mean reward of the other draws of the same source -> BK."""
    return (rewards_BK.sum(1, keepdim=True) - rewards_BK) / (rewards_BK.shape[1] - 1)


@OBJECTIVES.register("policy-gradient")
class PolicyGradient(Rewarded):
    """REINFORCE on a measure, with the greedy translation or the other draws as the baseline."""

    name = "policy-gradient"
    config: Config

    class Config(RewardedConfig):
        """How many translations are drawn, and what they are compared with."""

        samples: int = Field(1, ge=1, description="translations drawn of each source")
        baseline: Literal["greedy", "mean"] = Field(
            "greedy", description="the greedy translation, or the mean of the other draws"
        )

        @model_validator(mode="after")
        def _check_baseline(self) -> PolicyGradient.Config:
            if self.baseline == "mean" and self.samples < 2:
                raise ConfigError(
                    f"objective.samples = {self.samples}: the mean of the other draws needs at least 2; "
                    "raise objective.samples or take objective.baseline=greedy"
                )
            return self

    def portions(self, model: Any, batch: Batch, source: Source) -> Iterator[Tensor]:
        c, eos, critical = self.config, model.eos, self.config.baseline == "greedy"
        drawn = self.draw(model, batch, source, samples=c.samples, greedy=critical)
        W = c.samples + critical
        source_N = torch.arange(len(drawn.tokens_NT), device=drawn.tokens_NT.device) // W
        rewards_BW = self.rewards(drawn, batch, source_N, eos).view(-1, W)
        weights_N = self._advantages(rewards_BW).flatten() / c.samples
        # A row that is as good as expected has no gradient; one is kept, so that every weight has one.
        keep_N = weights_N.nonzero()[:, 0] if weights_N.any() else source_N[:1]
        lengths = drawn.weights_NT[keep_N].sum(1).long().tolist()
        for rows in portioned(lengths, range(len(lengths)), model.output.size):
            row_P = keep_N[rows]
            log_probs_P = forced(model, source, source_N[row_P], drawn.rows(row_P), eos)
            yield -(weights_N[row_P] * log_probs_P).sum()

    def _advantages(self, rewards_BW: Tensor) -> Tensor:
        """How much better each row is than expected -> BW; 0 for the greedy one, which is no draw."""
        if self.config.baseline == "mean":
            self.figures = {"reward": float(rewards_BW.mean())}
            return rewards_BW - others_mean(rewards_BW)
        greedy_B1, sampled_BK = rewards_BW[:, :1], rewards_BW[:, 1:]
        self.figures = {"reward": float(sampled_BK.mean()), "greedy_reward": float(greedy_B1.mean())}
        return rewards_BW - greedy_B1
