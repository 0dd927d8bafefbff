"""Labels: the sum of -log p of the labels of texts, or of the tags of words.

What a model makes of its labels is its own: one of them, any number of them, or a chain. So it tells the nats of each
row itself, and this objective is what asks for them, and for batches of labelled text.
"""

from __future__ import annotations

from typing import Any

from chainrule.config import Section
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, State


@OBJECTIVES.register("labels")
class Labels(Objective):
    """The model reads a text and is to tell its labels."""

    class Config(Section):
        """No options."""

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        """The nats of all rows, and how many texts, or words, they are of."""
        nats_B = model.nats(model(batch, state), batch)
        return Loss(nats_B.sum(), target_count(batch), None)


def target_count(batch: Batch) -> int:
    """The texts of a batch, or its words."""
    return len(batch.targets_BT) if batch.weights_BT is None else int(batch.weights_BT.sum())
