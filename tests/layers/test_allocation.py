"""The allocation matrix against loops, and predicted lengths against their definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.layers.nonautoregressive.allocation import (
    INITIAL_POSITIONS,
    REACH,
    Allocation,
    LengthPredictor,
    Sinusoids,
    prune_weights,
)


def allocation(width: int = 6, encoded: int = 4, seed: int = 0) -> Allocation:
    torch.manual_seed(seed)
    made = Allocation(encoded, width).double()
    torch.nn.init.normal_(made.distance_bias)
    return made


def padded(lengths: list[int], S: int) -> Tensor:
    """-inf beyond each length -> B1S."""
    beyond_BS = torch.arange(S) >= torch.tensor(lengths)[:, None]
    return torch.zeros(len(lengths), 1, S).double().masked_fill(beyond_BS[:, None], -math.inf)


def naive_weights(layer: Allocation, encoded_SE: Tensor, length: int, place: int, threshold: float) -> list[float]:
    """One row of the matrix, number by number."""
    query_D = layer.query.weight @ sinusoidal_table(place + 1, layer.sinusoids.width).double()[place]
    scores = []
    for s in range(length):
        key_D = layer.key.weight @ encoded_SE[s]
        distance = max(-REACH, min(REACH, place - s))
        scores.append(float(query_D @ key_D) / math.sqrt(len(query_D)) + float(layer.distance_bias[distance + REACH]))
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    kept = [weight if weight >= threshold or weight == max(weights) else 0.0 for weight in weights]
    return [weight / sum(kept) for weight in kept] + [0.0] * (len(encoded_SE) - length)


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3, 0.99])
@torch.no_grad()
def test_the_matrix_equals_a_loop(threshold: float) -> None:
    layer, lengths, S = allocation(), [7, 3], 7
    encoded_BSE = torch.randn(2, S, 4).double()
    source = layer.read(encoded_BSE, padded(lengths, S), torch.tensor(lengths))
    weights_BTS = layer.weights(source, 2, 5, threshold)
    for row, length in enumerate(lengths):
        for t in range(5):
            naive_S = torch.tensor(naive_weights(layer, encoded_BSE[row], length, t + 2, threshold)).double()
            torch.testing.assert_close(weights_BTS[row, t], naive_S)
    torch.testing.assert_close(weights_BTS.sum(2), torch.ones(2, 5).double())
    features_BTD = layer(source, 2, 5, threshold)
    torch.testing.assert_close(features_BTD, torch.einsum("bts,bsd->btd", weights_BTS, layer.value(encoded_BSE)))


@torch.no_grad()
def test_positions_and_distances_beyond_the_tables() -> None:
    layer, encoded_BSE = allocation(), torch.randn(1, 3, 4).double()
    source = layer.read(encoded_BSE, None, torch.full((len(encoded_BSE),), encoded_BSE.shape[1]))
    far_T = layer.weights(source, INITIAL_POSITIONS + 40, 2, 0.0)[0, 1]
    torch.testing.assert_close(
        far_T,
        torch.tensor(naive_weights(layer, encoded_BSE[0], 3, INITIAL_POSITIONS + 41, 0.0)).double(),
        atol=1e-6,
        rtol=1e-5,
    )


def test_a_row_does_not_depend_on_the_number_of_rows() -> None:
    layer, source = allocation(), allocation().read(torch.randn(2, 5, 4).double(), None, torch.tensor([5, 5]))
    whole_BTS = layer.weights(source, 0, 9, 0.1)
    for first, count in ((0, 1), (0, 4), (3, 2), (8, 1)):
        torch.testing.assert_close(layer.weights(source, first, count, 0.1), whole_BTS[:, first : first + count])


def test_weights_below_the_threshold_are_zero_except_the_largest() -> None:
    weights_BTS = torch.tensor([[[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]])
    torch.testing.assert_close(prune_weights(weights_BTS, 0.2)[0, 0], torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(prune_weights(weights_BTS, 0.9)[0], torch.tensor([[1.0, 0, 0, 0], [0.25] * 4]))
    assert prune_weights(weights_BTS, 0.0) is weights_BTS


def test_a_pruned_weight_gets_no_gradient() -> None:
    scores_S = torch.tensor([2.0, 1.0, -6.0], requires_grad=True)
    prune_weights(scores_S.softmax(0)[None, None], 0.01)[0, 0, 0].backward()
    assert scores_S.grad is not None
    assert scores_S.grad[:2].abs().min() > 0.01
    assert abs(float(scores_S.grad[2])) < 1e-7  # rescaling cancels the normaliser of the softmax


def test_sinusoids_grow_without_changing() -> None:
    sinusoids = Sinusoids(6)
    before = sinusoids.first(10).clone()
    after = sinusoids.first(INITIAL_POSITIONS + 1)
    assert len(after) > INITIAL_POSITIONS
    torch.testing.assert_close(after[: len(before)], before)
    torch.testing.assert_close(after, sinusoidal_table(len(after), 6))


# Lengths


def test_lengths_depend_on_the_mean_of_the_states_without_padding() -> None:
    torch.manual_seed(0)
    predictor, encoded_BSE = LengthPredictor(4, 3), torch.randn(2, 5, 4)
    mask_BS = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    scores_BC = predictor(encoded_BSE, mask_BS)
    torch.testing.assert_close(scores_BC[0], predictor.choose(encoded_BSE[0].mean(0)))
    torch.testing.assert_close(scores_BC[1], predictor.choose(encoded_BSE[1, :2].mean(0)))
    torch.testing.assert_close(predictor(encoded_BSE, None), predictor(encoded_BSE, mask_BS | True))


def test_the_loss_of_a_length_equals_that_of_its_difference() -> None:
    torch.manual_seed(0)
    predictor, scores_BC = LengthPredictor(4, 3), torch.randn(4, 7)
    source_B, target_B = torch.tensor([5, 5, 5, 5]), torch.tensor([5, 4, 8, 100])  # the last is beyond the reach
    expected = -sum(float(scores_BC[row].log_softmax(0)[place]) for row, place in enumerate([3, 2, 6, 6]))
    assert float(predictor.loss(scores_BC, source_B, target_B)) == pytest.approx(expected, rel=1e-6)


def test_the_best_lengths_have_the_highest_scores() -> None:
    predictor, source_B = LengthPredictor(4, 2), torch.tensor([6, 1])
    scores_BC = torch.tensor([[0.1, 0.5, 0.3, 0.9, 0.2], [0.9, 0.8, 0.1, 0.2, 0.3]])  # of -2, -1, 0, 1, 2
    assert predictor.best(scores_BC, source_B).tolist() == [[7], [0]]
    assert predictor.best(scores_BC, source_B, 3).tolist() == [[7, 5, 6], [0, 0, 3]]  # 1 - 2 is below 0
    assert predictor.best(scores_BC, source_B, 99).shape == (2, 5)
