"""Dropout: the share it drops, the scale of the rest, and the mask of the gradient."""

from __future__ import annotations

import pytest
import torch

from chainrule.layers.dropout import drop, dropout, word_mask


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_share_of_the_rate_is_dropped_and_the_rest_scaled_up(rate: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(401, 999), rate)  # a number of entries that four does not divide
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    deviation = (rate * (1 - rate) / out.numel()) ** 0.5
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=5 * deviation + 2**-16)
    by_place = (out == 0).float().view(-1)[: 401 * 996].view(-1, 4).mean(0)  # the four of one draw
    assert torch.allclose(by_place, torch.full((4,), rate), atol=10 * deviation + 2**-16)


def test_the_entries_of_one_draw_are_independent() -> None:
    torch.manual_seed(0)
    kept_N4 = (dropout(torch.ones(400_000), 0.5) > 0).view(-1, 4)
    patterns = torch.bincount((kept_N4 * torch.tensor([1, 2, 4, 8])).sum(1), minlength=16)
    expected = kept_N4.shape[0] / 16
    assert ((patterns - expected) ** 2 / expected).sum() < 37.7  # chi-square, 15 degrees, one in a thousand


def test_the_gradient_has_the_same_mask() -> None:
    torch.manual_seed(0)
    inputs = torch.rand(7, 5, 3, requires_grad=True)
    out = dropout(inputs, 0.4)
    out.sum().backward()
    assert torch.allclose(inputs.grad * inputs, out)


def test_the_same_seed_drops_the_same() -> None:
    torch.manual_seed(3)
    first = dropout(torch.ones(50), 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(torch.ones(50), 0.5))


def test_nothing_is_dropped_outside_training_or_at_rate_zero() -> None:
    inputs = torch.rand(2, 3, 4)
    assert drop(inputs, 0.5, training=False) is inputs
    assert drop(inputs, 0.0, training=True) is inputs


def test_a_locked_mask_is_the_same_at_all_steps() -> None:
    torch.manual_seed(0)
    out = drop(torch.ones(3, 6, 40), 0.5, training=True, locked=True)
    assert (out == out[:, :1]).all()
    assert 0 < (out == 0).float().mean() < 1


def test_a_word_is_dropped_everywhere_or_nowhere() -> None:
    torch.manual_seed(0)
    tokens_BT = torch.randint(0, 9, (20, 30))
    factors_BT = word_mask(tokens_BT, 9, 0.5)[:, :, 0]
    for word in range(9):
        assert len(factors_BT[tokens_BT == word].unique()) == 1
