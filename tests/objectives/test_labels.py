"""The label objective: its sum, and what it counts."""

from __future__ import annotations

from typing import Any

import torch

from chainrule.objectives.labels import LabelLikelihood, count_targets
from chainrule.registry import MODELS, OBJECTIVES
from chainrule.types import Batch, Outputs


class SumModel:
    """A model whose loss of a row is the sum of its inputs."""

    def __call__(self, batch: Batch, state: Any) -> Outputs:
        return Outputs(batch.inputs_BT[:, :, None].double(), state)

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        return outputs.hidden_BTD.sum((1, 2))


def test_the_loss_is_the_sum_over_texts_and_counts_them() -> None:
    batch = Batch(torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.zeros(3, 1, dtype=torch.int64))
    loss = LabelLikelihood(LabelLikelihood.Config()).loss(SumModel(), batch, None, 0)
    assert float(loss.total) == 21
    assert loss.count == 3
    assert loss.state is None


def test_several_labels_count_as_one_text_and_words_by_their_weights() -> None:
    several = Batch(torch.ones(3, 2), torch.zeros(3, 7, dtype=torch.int64))
    assert count_targets(several) == 3
    words = several._replace(weights_BT=torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 1, 1]]))
    assert count_targets(words) == 6


def test_models_of_labelled_text_are_trained_with_it() -> None:
    assert OBJECTIVES.get("labels").make is LabelLikelihood
    assert {entry.name for entry in MODELS.entries() if entry.objective == "labels"} == {"classifier", "tagger"}
