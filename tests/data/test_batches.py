"""Batches cover the text as documented, and batch i is a function of i."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from chainrule.data.batches import Batches, BlockBatches, StreamBatches

EOS = 7
KINDS = [StreamBatches, BlockBatches]


def make(kind: type, count: int, rows: int, length: int, seed: int = 3) -> Batches:
    """Batches of the tokens 100, 101, …, so that a token shows its position."""
    tokens = np.arange(100, 100 + count, dtype=np.uint16)
    made: Batches = kind(tokens, rows, length, eos=EOS, seed=seed)
    return made


def epoch(batches: Batches, number: int) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    pairs = [batches.batch(number * batches.per_epoch + index) for index in range(batches.per_epoch)]
    return [(batch.inputs_BT, batch.targets_BT, fresh) for batch, fresh in pairs]


@pytest.mark.parametrize(("count", "rows", "length"), [(97, 4, 5), (100, 4, 5), (23, 8, 50), (2, 3, 4), (31, 1, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_a_target_at_most_once_an_epoch_and_few_are_skipped(
    kind: type, count: int, rows: int, length: int
) -> None:
    batches = make(kind, count, rows, length)
    for number in range(3):
        seen = Counter(int(token) for _, targets_BT, _ in epoch(batches, number) for token in targets_BT.flatten())
        assert set(seen.values()) == {1}
        # A stream skips tokens that do not fill all tracks; blocks those that do not fill a block or a batch.
        skipped = rows - 1 if kind is StreamBatches else min(length, count - 1) * min(rows, count) + 1
        assert count - len(seen) <= skipped


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_the_tokens_before_the_targets(kind: type) -> None:
    batches = make(kind, 60, 3, 4)
    for number in range(3):
        for inputs_BT, targets_BT, _ in epoch(batches, number):
            expected_BT = torch.where(targets_BT == 100, torch.tensor(EOS if number == 0 else 159), targets_BT - 1)
            assert torch.equal(inputs_BT, expected_BT)


def test_a_stream_continues_where_its_last_batch_ended() -> None:
    batches = make(StreamBatches, 61, 3, 7)
    assert batches.per_epoch == 3  # tracks of 20 tokens
    for number in range(2):
        batch_list = epoch(batches, number)
        assert [fresh for _, _, fresh in batch_list] == [True, False, False]
        assert [inputs_BT.shape for inputs_BT, _, _ in batch_list] == [(3, 7), (3, 7), (3, 6)]
        for (_, before_BT, _), (inputs_BT, _, _) in itertools.pairwise(batch_list):
            assert torch.equal(before_BT[:, -1], inputs_BT[:, 0])


def test_later_epochs_begin_elsewhere_or_in_another_order() -> None:
    for kind in KINDS:
        batches = make(kind, 500, 4, 9)
        first, second, third = (epoch(batches, number)[0][1] for number in range(3))
        assert not torch.equal(first, second)
        assert not torch.equal(second, third)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_a_function_of_its_number_and_the_seed(kind: type) -> None:
    one, other, reseeded = make(kind, 90, 3, 4), make(kind, 90, 3, 4), make(kind, 90, 3, 4, seed=4)
    order = np.random.default_rng(0).permutation(4 * one.per_epoch)
    shuffled = {int(index): one.batch(int(index))[0].targets_BT for index in order}
    in_order = {index: other.batch(index)[0].targets_BT for index in range(4 * other.per_epoch)}
    assert all(torch.equal(shuffled[index], in_order[index]) for index in in_order)
    last = 3 * one.per_epoch
    assert not torch.equal(reseeded.batch(last)[0].targets_BT, in_order[last])
