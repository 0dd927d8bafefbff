"""Maximum likelihood: the sum of -log p of the targets, or the estimate of it that the output layer trains on."""

from __future__ import annotations

from chainrule.config import Section
from chainrule.objectives.network import Network
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, Outputs, State


def output_loss(model: Network, outputs: Outputs, batch: Batch) -> Loss:
    """The loss of a model's output layer on the targets of a batch, plus the further losses of the model."""
    targets_N = batch.targets_BT.flatten()
    weights_N = None if batch.weights_BT is None else batch.weights_BT.flatten()
    total = model.output.loss(outputs.hidden_BTD.flatten(0, 1), targets_N, weights_N)
    if outputs.extra is not None:
        total = total + outputs.extra
    count = targets_N.numel() if weights_N is None else int(weights_N.sum())
    return Loss(total, count, outputs.state)


@OBJECTIVES.register("likelihood")
class Likelihood(Objective):
    """The model reads the true text and predicts each next token (teacher forcing)."""

    class Config(Section):
        """No options."""

    def loss(self, model: Network, batch: Batch, state: State, step: int) -> Loss:
        return output_loss(model, model(batch, state), batch)
