"""Scheduled sampling: the model reads more and more of its own words while it learns, as it will when it generates.

Bengio et al., "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks", 2015; for models that read
all positions at once, the two-pass form of Mihaylova & Martins, "Scheduled Sampling for Transformers", 2019.

With probability ε_i at step i an input is the true word, otherwise a word drawn from the model. No gradient flows
through the draw, so the inputs are prepared first, without gradient, and then read as any other batch. `by="steps"`
draws each word from the model's distribution after the words drawn before it; `by="two-pass"` draws all of them from
the distributions that the true text gives.
Legend: B batch, T time, V vocabulary, D width, M replaced inputs.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from chainrule.config import Section
from chainrule.objectives.likelihood import output_loss
from chainrule.objectives.rollout import in_parts, pick
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
    """Maximum likelihood on inputs that are partly the model's own."""

    config: Config

    class Config(Section):
        """How the share of true words falls, and how the model's own are drawn."""

        decay: Literal["linear", "exponential", "inverse-sigmoid"] = "inverse-sigmoid"
        start: float = Field(1.0, ge=0, le=1, description="linear: ε at the first step")
        slope: float = Field(1e-4, ge=0, description="linear: how much ε falls each step")
        least: float = Field(0.5, ge=0, le=1, description="ε never falls below this")
        base: float = Field(0.9995, gt=0, lt=1, description="exponential: ε = base^step")
        k: float = Field(500.0, ge=1, description="inverse-sigmoid: ε = k/(k + exp(step/k))")
        by: Literal["auto", "steps", "two-pass"] = Field("auto", description="auto: two-pass for models with a window")

    def truth(self, step: int) -> float:
        """ε: the probability that an input is the true word."""
        c = self.config
        if c.decay == "linear":
            return linear_decay(step, c.start, c.slope, c.least)
        chance = exponential_decay(step, c.base) if c.decay == "exponential" else inverse_sigmoid_decay(step, c.k)
        return max(c.least, chance)

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        chance = self.truth(step)
        if chance < 1.0:
            batch = batch._replace(inputs_BT=self.mixed_inputs(model, batch, state, chance))
        return output_loss(model, model(batch, state), batch)

    @torch.no_grad()
    def mixed_inputs(self, model: Any, batch: Batch, state: State, chance: float) -> Tensor:
        """The inputs with some words replaced by the model's own; the first is always true -> BT."""
        by = self.config.by
        if by == "auto":
            by = "two-pass" if model.window else "steps"
        true_BT = torch.rand(batch.inputs_BT.shape, device=batch.inputs_BT.device) < chance
        true_BT[:, 0] = True
        draw = self._by_steps if by == "steps" else self._by_two_passes
        return draw(model, batch, state, true_BT)

    @staticmethod
    def _by_steps(model: Any, batch: Batch, state: State, true_BT: Tensor) -> Tensor:
        if state is None:
            state = model.start(len(batch.inputs_BT) if batch.source is None else batch.source)
        words = [batch.inputs_BT[:, 0]]
        for t in range(1, batch.inputs_BT.shape[1]):
            log_probs_BV, state = model.step(state, words[-1])
            words.append(torch.where(true_BT[:, t], batch.inputs_BT[:, t], pick(log_probs_BV)))
        return torch.stack(words, 1)

    @staticmethod
    def _by_two_passes(model: Any, batch: Batch, state: State, true_BT: Tensor) -> Tensor:
        hidden_BTD = model(batch, state).hidden_BTD
        inputs_BT, replaced_BT = batch.inputs_BT.clone(), ~true_BT
        if batch.weights_BT is not None:  # what is read to predict padding is not worth a draw
            replaced_BT &= batch.weights_BT > 0
        hidden_MD = hidden_BTD[:, :-1][replaced_BT[:, 1:]]
        if len(hidden_MD):
            drawn = [pick(model.output.log_probs(part)) for part in in_parts(model.output, hidden_MD)]
            inputs_BT[replaced_BT] = torch.cat(drawn)
        return inputs_BT
