"""The linear-chain CRF, against enumeration."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch

from chainrule.layers.crf import LinearChainCrf

LENGTHS = (5, 2, 1)


def random_crf() -> tuple[LinearChainCrf, torch.Tensor, torch.Tensor]:
    """A CRF over four tags, scores BTC, and a mask BT that is False at padding."""
    torch.manual_seed(1)
    scores_BTC = torch.randn(3, 5, 4, dtype=torch.float64)
    crf = LinearChainCrf(4).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf, scores_BTC, torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def naive_score(crf: LinearChainCrf, scores_TC: torch.Tensor, tags: tuple[int, ...]) -> float:
    total = float(crf.begins_L[tags[0]] + crf.ends_L[tags[-1]])
    total += sum(float(scores_TC[place, tag]) for place, tag in enumerate(tags))
    return total + sum(float(crf.moves_LL[a, b]) for a, b in pairwise(tags))


@torch.no_grad()
def test_partition_best_tags_and_loss_equal_enumeration() -> None:
    crf, scores_BTC, mask_BT = random_crf()
    tags_BT = torch.randint(0, 4, (3, 5))
    partition_B, best_BT = crf.log_partition(scores_BTC, mask_BT), crf.best(scores_BTC, mask_BT)
    loss_B = crf.negative_log_prob(scores_BTC, tags_BT, mask_BT)
    for row, length in enumerate(LENGTHS):
        paths = {tags: naive_score(crf, scores_BTC[row], tags) for tags in product(range(4), repeat=length)}
        log_z = math.log(sum(map(math.exp, paths.values())))
        assert float(partition_B[row]) == pytest.approx(log_z)
        assert tuple(best_BT[row, :length].tolist()) == max(paths, key=paths.__getitem__)
        given = tuple(tags_BT[row, :length].tolist())
        assert float(loss_B[row]) == pytest.approx(log_z - paths[given])


@torch.no_grad()
def test_marginals_equal_enumeration() -> None:
    crf, scores_BTC, mask_BT = random_crf()
    marginals_BTC = crf.marginals(scores_BTC, mask_BT)
    for row, length in enumerate(LENGTHS):
        paths = {tags: math.exp(naive_score(crf, scores_BTC[row], tags)) for tags in product(range(4), repeat=length)}
        for place, tag in product(range(length), range(4)):
            share = sum(weight for tags, weight in paths.items() if tags[place] == tag) / sum(paths.values())
            assert float(marginals_BTC[row, place, tag]) == pytest.approx(share)


def test_without_transition_scores_it_is_a_softmax() -> None:
    _, scores_BTC, mask_BT = random_crf()
    tags_BT = torch.randint(0, 4, (3, 5))
    loss_B = LinearChainCrf(4).double().negative_log_prob(scores_BTC, tags_BT, mask_BT)
    loss_BT = -scores_BTC.log_softmax(2).gather(2, tags_BT[:, :, None])[:, :, 0] * mask_BT
    torch.testing.assert_close(loss_B, loss_BT.sum(1))


def test_padding_has_no_effect() -> None:
    crf, scores_BTC, mask_BT = random_crf()
    tags_BT = torch.randint(0, 4, (3, 5))
    short_1TC, short_1T = scores_BTC[1:2, :2], mask_BT[1:2, :2]
    alone_1 = crf.negative_log_prob(short_1TC, tags_BT[1:2, :2], short_1T)
    torch.testing.assert_close(alone_1[0], crf.negative_log_prob(scores_BTC, tags_BT, mask_BT)[1])
