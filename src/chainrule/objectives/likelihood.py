"""Maximum likelihood: the sum of -log p of the targets, or what the output layer trains in its place."""

from __future__ import annotations

from typing import Any

from chainrule.config import Section
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, Outputs, State


def output_loss(model: Any, outputs: Outputs, batch: Batch) -> Loss:
    """The loss of a model's output layer on features for the targets of a batch, and what the model adds to it."""
    targets_N = batch.targets_BT.flatten()
    weights_N = None if batch.weights_BT is None else batch.weights_BT.flatten()
    total = model.output.loss(outputs.hidden_BTD.flatten(0, 1), targets_N, weights_N)
    if outputs.extra is not None:
        total = total + outputs.extra
    count = targets_N.numel() if weights_N is None else int(weights_N.sum())
    return Loss(total, count, outputs.state)


@OBJECTIVES.register("likelihood")
class Likelihood(Objective):
    """The model reads the true text and is to predict it."""

    class Config(Section):
        """No options."""

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        return output_loss(model, model(batch, state), batch)
