"""Label likelihood: the sum of -log p of the labels of texts, or of the tags of words.

How labels become a probability depends on the model: one label per text, any number of labels, or a chain of tags. So
the model computes the loss of each row.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from chainrule.config import Section
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, Outputs, State


class LabelNetwork(Protocol):
    """A model that scores the labels of a batch."""

    def __call__(self, batch: Batch, state: State = None) -> Outputs: ...

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the labels or tags of each row -> B."""
        ...

    def row_weights(self, batch: Batch) -> Tensor | None:
        """The weight of each row in the loss -> B; None: all weigh the same."""
        ...


@OBJECTIVES.register("labels")
class LabelLikelihood(Objective):
    """The model reads a text and predicts its labels or the tags of its words."""

    class Config(Section):
        """No options."""

    def loss(self, model: LabelNetwork, batch: Batch, state: State, step: int) -> Loss:
        """-log p summed over the rows, each times its weight, and the number of texts or words."""
        nats_B = model.negative_log_probs(model(batch, state), batch)
        if (weights_B := model.row_weights(batch)) is not None:
            nats_B = weights_B * nats_B
        return Loss(nats_B.sum(), count_targets(batch), None)


def count_targets(batch: Batch) -> int:
    """The number of texts in a batch, or of words where the targets are tags."""
    return len(batch.targets_BT) if batch.weights_BT is None else int(batch.weights_BT.sum())
