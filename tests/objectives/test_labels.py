"""The label objective: its sum, and what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from chainrule.errors import ConfigError
from chainrule.objectives.labels import LabelLikelihood, count_targets
from chainrule.registry import MODELS, OBJECTIVES
from chainrule.types import Batch, Outputs


class SumModel:
    """A model whose loss of a row is the sum of its inputs."""

    def __call__(self, batch: Batch, state: Any) -> Outputs:
        return Outputs(batch.inputs_BT[:, :, None].double(), state)

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        return outputs.hidden_BTD.sum((1, 2))

    def row_weights(self, batch: Batch) -> None:
        return None


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [("balanced", {"neg": 24 / (2 * 18), "pos": 24 / (2 * 6)}), ({"pos": 5}, {"neg": 1.0, "pos": 5.0})],
)
def test_class_weights_multiply_the_loss_of_their_texts(given: Any, expected: dict[str, float], tmp_path: Path) -> None:
    texts = [f"good {number}" for number in range(6)] + [f"bad {number}" for number in range(18)]
    labels = ["pos"] * 6 + ["neg"] * 18
    run: Any = cr.train(
        texts, labels, valid=(texts, labels), model="classifier", steps=1, class_weight=given, out=tmp_path / "run"
    )
    assert run.model.config.class_weight == pytest.approx(expected)
    batch = run.corpus.train.examples.batch(np.arange(24))
    objective = LabelLikelihood(LabelLikelihood.Config())
    with torch.no_grad():
        weighted = float(objective.loss(run.model, batch, None, 0).total)
        nats_B = run.model.negative_log_probs(run.model(batch), batch).tolist()
    by_hand = sum(expected[label] * nats for label, nats in zip(labels, nats_B, strict=True))
    assert weighted == pytest.approx(by_hand, rel=1e-5)
    assert run.evaluate((texts, labels)).loss == pytest.approx(sum(nats_B) / 24, rel=1e-4)  # not weighted
    loaded: Any = cr.load(tmp_path / "run")
    assert loaded.model.config.class_weight == pytest.approx(expected)


def test_weights_of_unknown_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown label in model\.class_weight 'ham': "):
        cr.train(["a b", "c d"] * 8, ["x", "y"] * 8, model="classifier", class_weight={"ham": 2}, out=tmp_path / "run")
