"""Pooling and the chain of tags, against loops and enumeration; states that are remembered, against those read anew."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch

from chainrule.layers.crf import LinearChainCrf
from chainrule.layers.encoders.encoders import make_encoder, shape_of
from chainrule.layers.encoders.frozen_cache import RememberedStates
from chainrule.layers.encoders.pooling import AttentionPooling, make_pooling
from chainrule.types import Source

LENGTHS = (5, 2, 1)


def states() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 5, 4, dtype=torch.float64), torch.arange(5) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("kind", ["attention", "mean", "max", "first"])
def test_pooling_by_a_loop(kind: str) -> None:
    states_BSD, mask_BS = states()
    pooling = make_pooling(kind, 4).double()  # type: ignore[arg-type]
    pooled_BD = pooling(states_BSD, mask_BS)
    for row, length in enumerate(LENGTHS):
        rows = [states_BSD[row, place] for place in range(length)]
        if kind == "attention":
            assert isinstance(pooling, AttentionPooling)
            query_D, key = pooling.query_D.detach(), pooling.key.requires_grad_(False)
            scores = [float((key.weight @ h + key.bias).tanh() @ query_D) / math.sqrt(4) for h in rows]
            total = sum(map(math.exp, scores))
            wanted = sum((math.exp(s) / total * h for s, h in zip(scores, rows, strict=True)), torch.zeros(4))
        elif kind == "mean":
            wanted = sum(rows, torch.zeros(4)) / length
        elif kind == "max":
            wanted = torch.stack(rows).max(0).values
        else:
            wanted = rows[0]
        torch.testing.assert_close(pooled_BD[row], wanted.double())


@pytest.mark.parametrize("kind", ["attention", "mean", "max", "first"])
def test_padding_may_be_anything(kind: str) -> None:
    states_BSD, mask_BS = states()
    pooling = make_pooling(kind, 4).double()  # type: ignore[arg-type]
    for nothing in (1e30, math.nan):
        spoilt_BSD = states_BSD.masked_fill(~mask_BS[:, :, None], nothing)
        assert torch.equal(pooling(spoilt_BSD, mask_BS), pooling(states_BSD, mask_BS))


def test_attention_gradients() -> None:
    states_BSD, mask_BS = states()
    pooling = AttentionPooling(4).double()
    weights_BS = pooling.weights(states_BSD, mask_BS)
    torch.testing.assert_close(weights_BS.sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda s: pooling(s, mask_BS), states_BSD.requires_grad_())


# The chain


def chain() -> tuple[LinearChainCrf, torch.Tensor, torch.Tensor]:
    states_BTL, mask_BT = states()
    field = LinearChainCrf(4).double()
    for parameter in field.parameters():
        torch.nn.init.normal_(parameter)
    return field, states_BTL, mask_BT


def naive_score(field: LinearChainCrf, scores_TL: torch.Tensor, tags: tuple[int, ...]) -> float:
    total = float(field.begins_L[tags[0]] + field.ends_L[tags[-1]])
    total += sum(float(scores_TL[place, tag]) for place, tag in enumerate(tags))
    return total + sum(float(field.moves_LL[a, b]) for a, b in pairwise(tags))


@torch.no_grad()
def test_the_chain_by_enumeration() -> None:
    field, scores_BTL, mask_BT = chain()
    tags_BT = torch.randint(0, 4, (3, 5))
    partition_B, best_BT = field.log_partition(scores_BTL, mask_BT), field.best(scores_BTL, mask_BT)
    nats_B = field.nats(scores_BTL, tags_BT, mask_BT)
    for row, length in enumerate(LENGTHS):
        paths = {tags: naive_score(field, scores_BTL[row], tags) for tags in product(range(4), repeat=length)}
        log_z = math.log(sum(map(math.exp, paths.values())))
        assert float(partition_B[row]) == pytest.approx(log_z)
        assert tuple(best_BT[row, :length].tolist()) == max(paths, key=paths.__getitem__)
        given = tuple(tags_BT[row, :length].tolist())
        assert float(nats_B[row]) == pytest.approx(log_z - paths[given])


def test_a_chain_without_preferences_is_a_softmax() -> None:
    _, scores_BTL, mask_BT = chain()
    tags_BT = torch.randint(0, 4, (3, 5))
    nats_B = LinearChainCrf(4).double().negative_log_prob(scores_BTL, tags_BT, mask_BT)
    nats_BT = -scores_BTL.log_softmax(2).gather(2, tags_BT[:, :, None])[:, :, 0] * mask_BT
    torch.testing.assert_close(nats_B, nats_BT.sum(1))


def test_padding_of_a_chain_changes_nothing() -> None:
    field, scores_BTL, mask_BT = chain()
    tags_BT = torch.randint(0, 4, (3, 5))
    short_1TL, short_1T = scores_BTL[1:2, :2], mask_BT[1:2, :2]
    alone_1 = field.nats(short_1TL, tags_BT[1:2, :2], short_1T)
    torch.testing.assert_close(alone_1[0], field.nats(scores_BTL, tags_BT, mask_BT)[1])


# States that were read before


def test_remembered_states_are_those_of_the_encoder_and_read_once() -> None:
    torch.manual_seed(2)
    encoder, reads = make_encoder(shape_of("lstm", 9, width=6, dropout=0.0)), []

    def read(source: Source) -> torch.Tensor:
        reads.append(source.tokens_BS.tolist())
        return encoder(*source)  # type: ignore[no-any-return]

    remembered = RememberedStates(read)
    tokens_BS = torch.tensor([[3, 4, 5, 1], [6, 1, 1, 1], [3, 4, 5, 1]])
    mask_BS = torch.arange(4) < torch.tensor([4, 2, 4])[:, None]
    for _ in range(2):
        states_BSD = remembered(Source(tokens_BS, mask_BS))
        torch.testing.assert_close(states_BSD[mask_BS], encoder(tokens_BS, mask_BS)[mask_BS])
    assert reads == [[[3, 4, 5, 1]], [[6, 1]]]  # each by itself, without padding
    assert not states_BSD.requires_grad
    short = remembered(Source(tokens_BS[1:2, :2], mask_BS[1:2, :2]))
    assert torch.equal(short[0], states_BSD[1, :2])  # whatever the company


def test_memory_has_its_bound() -> None:
    remembered = RememberedStates(lambda source: source.tokens_BS[:, :, None].float(), room=4 * 3)
    tokens_BS = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):
        states_BSD = remembered(Source(tokens_BS, torch.ones(2, 3, dtype=torch.bool)))
        assert torch.equal(states_BSD[:, :, 0], tokens_BS.float())
    assert len(remembered.kept) == 1
