"""CTC against the enumeration of all ways to fill the slots, and against torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from builders import some_vocabulary
from chainrule.layers.nonautoregressive.ctc import CtcHead, collapse
from chainrule.layers.outputs.base import OutputLayer
from chainrule.layers.outputs.hierarchical import Hierarchical
from chainrule.layers.outputs.softmax import Softmax


def naive_collapse(filled: tuple[int, ...], blank: int) -> list[int]:
    """Merge repeats, then remove blanks, word by word."""
    words: list[int] = []
    for place, word in enumerate(filled):
        if word != blank and (place == 0 or filled[place - 1] != word):
            words.append(word)
    return words


def table(head: CtcHead, features_BQD: Tensor, output: OutputLayer) -> Tensor:
    """log p of every word, and of the blank as the last entry -> (B, Q, V + 1)."""
    blank_BQ1 = head.blank(features_BQD).sigmoid()
    words_BQV = output.log_probs(features_BQD.flatten(0, 1)).view(*features_BQD.shape[:2], -1)
    return torch.cat([words_BQV + (1 - blank_BQ1).log(), blank_BQ1.log()], 2)


@pytest.mark.parametrize("layer", [Softmax, Hierarchical])
def test_the_loss_sums_over_all_ways_to_fill_the_slots(layer: type) -> None:
    torch.manual_seed(0)
    V, Q, slots_B = 3, 4, [4, 3]
    output, head = layer(layer.Config(), 6, some_vocabulary(V)).eval(), CtcHead(5, 6, 2)  # type: ignore[attr-defined]
    features_BQD = torch.randn(2, Q, 6)
    targets = [[1, 1], [2]]
    table_BQV = table(head, features_BQD, output).detach()
    torch.testing.assert_close(table_BQV.exp().sum(2), torch.ones(2, Q))
    expected = 0.0
    for row, target in enumerate(targets):
        ways = itertools.product(range(V + 1), repeat=slots_B[row])
        p = sum(
            math.exp(sum(float(table_BQV[row, slot, word]) for slot, word in enumerate(way)))
            for way in ways
            if naive_collapse(way, V) == target
        )
        expected -= math.log(p)
    lengths_B = torch.tensor([2, 1])
    loss = head.loss(features_BQD, torch.tensor(slots_B), output, torch.tensor([[1, 1], [2, 0]]), lengths_B)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_loss_and_gradients_equal_those_of_torch() -> None:
    torch.manual_seed(1)
    V, slots_B, lengths_B = 7, torch.tensor([12, 9, 5, 12]), torch.tensor([5, 3, 0, 6])
    output, head = Softmax(Softmax.Config(), 6, some_vocabulary(V)).double(), CtcHead(5, 6, 2).double()
    features_BQD = torch.randn(4, 12, 6, dtype=torch.double, requires_grad=True)
    targets_BT = torch.randint(0, V, (4, 6))
    targets_BT[0, :2] = 3  # the same word twice
    ours = head.loss(features_BQD, slots_B, output, targets_BT, lengths_B)
    log_probs_QBV = table(head, features_BQD, output).transpose(0, 1)
    theirs = functional.ctc_loss(log_probs_QBV, targets_BT, slots_B, lengths_B, blank=V, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    watched = [features_BQD, output.weight_VD, head.blank.weight]
    torch.testing.assert_close(torch.autograd.grad(ours, watched), torch.autograd.grad(theirs, watched))


@pytest.mark.parametrize("layer", [Softmax, Hierarchical])
def test_the_best_filling_is_the_most_probable_of_each_slot(layer: type) -> None:
    torch.manual_seed(2)
    output, head = layer(layer.Config(), 6, some_vocabulary(5)).eval(), CtcHead(5, 6, 2)  # type: ignore[attr-defined]
    features_BQD, slots_B = torch.randn(30, 8, 6), torch.arange(30) % 9
    expected = collapse(table(head, features_BQD, output).argmax(2), slots_B, 5)
    asked = []

    def best_words(features_MD: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(len(features_MD))
        log_prob_M, word_M = output.log_probs(features_MD).max(1)
        return word_M, log_prob_M

    assert head.best(features_BQD, slots_B, best_words) == expected
    assert 0 < sum(asked) < 30 * 8  # the others are certainly blanks
    assert any(len(row) < count for row, count in zip(expected, slots_B.tolist(), strict=True))


def test_a_target_that_does_not_fit_has_no_loss() -> None:
    output, head = Softmax(Softmax.Config(), 6, some_vocabulary(4)), CtcHead(5, 6, 1)
    features_BQD = torch.randn(1, 2, 6, requires_grad=True)
    loss = head.loss(features_BQD, torch.tensor([2]), output, torch.tensor([[1, 1]]), torch.tensor([2]))
    loss.backward()
    assert float(loss.detach()) == 0  # two equal words need a blank between them
    assert features_BQD.grad is not None
    assert not features_BQD.grad.any()


def test_filled_slots_are_collapsed() -> None:
    filled_BQ = torch.randint(0, 4, (50, 7), generator=torch.Generator().manual_seed(0))
    slots_B = torch.arange(50) % 8
    found = collapse(filled_BQ, slots_B, 3)
    for row, slots, tokens in zip(filled_BQ.tolist(), slots_B.tolist(), found, strict=True):
        assert tokens == naive_collapse(tuple(row[:slots]), 3)


def test_every_source_word_has_its_slots() -> None:
    torch.manual_seed(0)
    head, encoded_BSE = CtcHead(5, 6, 3), torch.randn(2, 4, 5)
    inputs_BQD = head.inputs(encoded_BSE)
    assert inputs_BQD.shape == (2, 12, 6)
    for slot in range(12):
        torch.testing.assert_close(
            inputs_BQD[:, slot], head.project(encoded_BSE[:, slot // 3]) + head.which_KD[slot % 3]
        )
