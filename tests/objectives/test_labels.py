"""The objective of labels: sums, and what they are of."""

from __future__ import annotations

from typing import Any

import torch

from chainrule.objectives.labels import Labels, target_count
from chainrule.types import Batch, Outputs


class Fixed:
    """A model that finds each row as improbable as its number says."""

    def __call__(self, batch: Batch, state: Any) -> Outputs:
        return Outputs(batch.inputs_BT[:, :, None].double(), state)

    def nats(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        return outputs.hidden_BTD.sum((1, 2))


def test_the_sum_over_texts_and_their_number() -> None:
    batch = Batch(torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.zeros(3, 1, dtype=torch.int64))
    loss = Labels(Labels.Config()).loss(Fixed(), batch, None, 0)
    assert float(loss.total) == 21
    assert loss.count == 3
    assert loss.state is None


def test_several_labels_count_as_one_text_and_words_by_their_weights() -> None:
    several = Batch(torch.ones(3, 2), torch.zeros(3, 7, dtype=torch.int64))
    assert target_count(several) == 3
    words = several._replace(weights_BT=torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 1, 1]]))
    assert target_count(words) == 6


def test_it_asks_for_labelled_text() -> None:
    assert Labels.reads == "labels"
