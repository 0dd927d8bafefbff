"""The mixture of two predictions against its formula, over every output layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from builders import OUTPUT_LAYERS, some_vocabulary
from chainrule.layers.outputs.mixed import NEVER, MixedOutput, log_odds, mix, pack
from chainrule.registry import OUTPUTS

V, D = 13, 6
layers = pytest.mark.parametrize("name", OUTPUT_LAYERS)


def mixed(name: str) -> MixedOutput:
    torch.manual_seed(0)
    layer: Any = OUTPUTS.get(name).make
    return MixedOutput(layer(layer.Config(), D, some_vocabulary(V))).eval()


@layers
def test_a_mixture_equals_the_formula(name: str) -> None:
    output, first_ND, second_ND = mixed(name), torch.randn(5, D), torch.randn(5, D)
    targets_N = torch.tensor([0, 3, 12, 7, 1])
    for gamma in (0.0, 0.25, 0.9, 1.0):
        packed_ND = pack(first_ND, second_ND, torch.full((5,), log_odds(gamma)))
        expected_NV = (1 - gamma) * output.base.log_probs(first_ND).exp() + gamma * output.base.log_probs(
            second_ND
        ).exp()
        mixed_NV = output.log_probs(packed_ND)
        torch.testing.assert_close(mixed_NV.exp(), expected_NV)
        torch.testing.assert_close(mixed_NV.exp().sum(1), torch.ones(5))
        torch.testing.assert_close(output.log_prob(packed_ND, targets_N), mixed_NV.gather(1, targets_N[:, None])[:, 0])


@layers
def test_features_of_the_plain_width_are_not_mixed(name: str) -> None:
    output, hidden_ND, targets_N = mixed(name), torch.randn(4, D), torch.tensor([1, 0, 5, 2])
    assert torch.equal(output.log_probs(hidden_ND), output.base.log_probs(hidden_ND))
    assert torch.equal(output.log_prob(hidden_ND, targets_N), output.base.log_prob(hidden_ND, targets_N))
    torch.testing.assert_close(output.scores(hidden_ND).log_softmax(1), output.base.log_probs(hidden_ND))


@layers
def test_the_loss_equals_that_of_the_first_prediction(name: str) -> None:
    output, first_ND, targets_N = mixed(name), torch.randn(4, D), torch.tensor([1, 0, 5, 2])
    packed_ND = pack(first_ND, torch.randn(4, D), torch.zeros(4))
    weights_N = torch.tensor([1.0, 0.0, 1.0, 0.5])
    torch.manual_seed(1)  # some layers draw noise
    found = output.loss(packed_ND, targets_N, weights_N)
    torch.manual_seed(1)
    torch.testing.assert_close(found, output.base.loss(first_ND, targets_N, weights_N))


def test_extreme_odds_select_one_prediction_exactly() -> None:
    first_V, second_V = torch.randn(9).log_softmax(0), torch.randn(9).log_softmax(0)
    assert torch.equal(mix(first_V, second_V, torch.tensor(NEVER)), first_V)
    assert torch.equal(mix(first_V, second_V, torch.tensor(-NEVER)), second_V)
    assert log_odds(0.2) == pytest.approx(math.log(0.25))
