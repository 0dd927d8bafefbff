"""Scheduled sampling: during training the model reads more and more of its own tokens, as it does in generation.

Bengio et al., "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks", 2015; for models that read
all positions in parallel, the two-pass form of Mihaylova & Martins, "Scheduled Sampling for Transformers", 2019.

At step i an input is the true token with probability ε_i, otherwise a token sampled from the model. No gradient flows
through the samples, so the inputs are prepared first, without gradient, and then read like any other batch.
`by="steps"` samples each token from the model's distribution after the tokens sampled before it; `by="two-pass"`
samples all of them from the distributions given the true text.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from chainrule.config import Section
from chainrule.objectives.likelihood import output_loss
from chainrule.objectives.network import SteppingNetwork
from chainrule.objectives.rollout import sample_tokens, split_for_output
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, State


def linear_decay(step: int, start: float, slope: float, least: float) -> float:
    """ε_i = max(least, start - slope·i)."""
    return max(least, start - slope * step)


def exponential_decay(step: int, base: float) -> float:
    """ε_i = base^i, base < 1."""
    return float(base**step)


def inverse_sigmoid_decay(step: int, k: float) -> float:
    """ε_i = k / (k + exp(i/k)), k ≥ 1."""
    return 1.0 / (1.0 + math.exp(min(step / k, 700.0)) / k)


@OBJECTIVES.register("scheduled-sampling")
class ScheduledSampling(Objective):
    """Maximum likelihood on inputs that are partly sampled from the model."""

    samples = True

    config: Config

    class Config(Section):
        """How the share of true tokens decays, and how the model's own tokens are sampled."""

        decay: Literal["linear", "exponential", "inverse-sigmoid"] = Field(
            "inverse-sigmoid", description="how ε, the probability of a true input, decays"
        )
        start: float = Field(1.0, ge=0, le=1, description="linear: ε at the first step")
        slope: float = Field(1e-4, ge=0, description="linear: decrease of ε per step")
        least: float = Field(0.0, ge=0, le=1, description="minimum of ε; 0: none")
        base: float = Field(0.9995, gt=0, lt=1, description="exponential: ε = base^step")
        k: float = Field(500.0, ge=1, description="inverse-sigmoid: ε = k/(k + exp(step/k))")
        by: Literal["auto", "steps", "two-pass"] = Field(
            "auto", description="sample token by token or in two passes; auto: two-pass for models with a window"
        )

    def true_input_rate(self, step: int) -> float:
        """ε: the probability that an input is the true token."""
        c = self.config
        if c.decay == "linear":
            return linear_decay(step, c.start, c.slope, c.least)
        rate = exponential_decay(step, c.base) if c.decay == "exponential" else inverse_sigmoid_decay(step, c.k)
        return max(c.least, rate)

    def loss(self, model: SteppingNetwork, batch: Batch, state: State, step: int) -> Loss:
        rate = self.true_input_rate(step)
        self.figures = {"epsilon": rate}
        if rate < 1.0:
            batch = batch._replace(inputs_BT=self.mix_inputs(model, batch, state, rate))
        return output_loss(model, model(batch, state), batch)

    @torch.no_grad()
    def mix_inputs(self, model: SteppingNetwork, batch: Batch, state: State, rate: float) -> Tensor:
        """The inputs with some tokens replaced by the model's own; the first is always true -> BT."""
        by = self.config.by
        if by == "auto":
            by = "two-pass" if model.window else "steps"
        true_BT = torch.rand(batch.inputs_BT.shape, device=batch.inputs_BT.device) < rate
        true_BT[:, 0] = True
        replace = self._replace_by_steps if by == "steps" else self._replace_in_two_passes
        return replace(model, batch, state, true_BT)

    @staticmethod
    def _replace_by_steps(model: SteppingNetwork, batch: Batch, state: State, true_BT: Tensor) -> Tensor:
        if state is None:
            state = model.start(len(batch.inputs_BT) if batch.source is None else batch.source)
        tokens = [batch.inputs_BT[:, 0]]
        for t in range(1, batch.inputs_BT.shape[1]):
            log_probs_BV, state = model.step(state, tokens[-1])
            tokens.append(torch.where(true_BT[:, t], batch.inputs_BT[:, t], sample_tokens(log_probs_BV)))
        return torch.stack(tokens, 1)

    @staticmethod
    def _replace_in_two_passes(model: SteppingNetwork, batch: Batch, state: State, true_BT: Tensor) -> Tensor:
        hidden_BTD = model(batch, state).hidden_BTD
        inputs_BT, replaced_BT = batch.inputs_BT.clone(), ~true_BT
        if batch.weights_BT is not None:  # inputs whose targets are padding need no sample
            replaced_BT &= batch.weights_BT > 0
        hidden_MD = hidden_BTD[:, :-1][replaced_BT[:, 1:]]
        if len(hidden_MD):
            parts = split_for_output(model.output, hidden_MD)
            inputs_BT[replaced_BT] = torch.cat([sample_tokens(model.output.log_probs(part_MD)) for part_MD in parts])
        return inputs_BT
