"""Shares of a batch, and random numbers that do not depend on them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from chainrule.base.shares import Share, computing, draw_rows
from chainrule.layers.attention.dot_product import dot_product_attention
from chainrule.layers.dropout import drop, dropout


@pytest.mark.parametrize(("total", "world"), [(12, 2), (9, 2), (7, 3), (1, 3)])
def test_shares_cover_the_rows_once(total: int, world: int) -> None:
    shares = [Share.of(rank, world, total) for rank in range(world)]
    assert [row for share in shares for row in range(share.begin, share.end)] == list(range(total))
    assert max(share.size for share in shares) - min(share.size for share in shares) <= 1
    assert all(share.computed.size >= 1 for share in shares)


@pytest.mark.parametrize("locked", [False, True])
def test_dropout_of_a_share_is_that_of_its_rows_in_the_whole_batch(locked: bool) -> None:
    inputs_BTD = torch.randn(5, 3, 7)
    torch.manual_seed(1)
    whole_BTD = drop(inputs_BTD, 0.4, training=True, locked=locked)
    after = torch.get_rng_state()
    for rank in range(2):
        share = Share.of(rank, 2, 5)
        torch.manual_seed(1)
        with computing(share):
            part_BTD = drop(inputs_BTD[share.begin : share.end], 0.4, training=True, locked=locked)
        assert torch.equal(part_BTD, whole_BTD[share.begin : share.end])
        assert torch.equal(torch.get_rng_state(), after)


def test_positions_of_the_rows_may_be_concatenated() -> None:
    inputs_ND = torch.randn(4 * 6, 5)
    torch.manual_seed(2)
    whole_ND = dropout(inputs_ND, 0.5)
    torch.manual_seed(2)
    with computing(Share(1, 3, 4)):
        assert torch.equal(dropout(inputs_ND[6:18], 0.5), whole_ND[6:18])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout_is_that_of_torch_for_the_rows_of_a_share(causal: bool) -> None:
    query, key, value = (torch.randn(4, 2, 6, 8) for _ in range(3))
    torch.manual_seed(3)
    whole = F.scaled_dot_product_attention(query, key, value, None, 0.3, causal)
    torch.manual_seed(3)
    with computing(Share(1, 3, 4)):
        part = dot_product_attention(query[1:3], key[1:3], value[1:3], None, 0.3, causal=causal)
    torch.testing.assert_close(part, whole[1:3])


def test_without_a_share_numbers_are_drawn_as_they_are() -> None:
    with computing(Share(0, 4, 4)):
        assert draw_rows(torch.zeros, (4, 2)).shape == (4, 2)
