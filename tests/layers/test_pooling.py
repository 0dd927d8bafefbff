"""Pooling of token states, against loops."""

from __future__ import annotations

import math

import pytest
import torch

from chainrule.layers.encoders.pooling import AttentionPooling, PooledAttention, make_pooling

LENGTHS = (5, 2, 1)
POOLED_BE = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def states() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 5, 4, dtype=torch.float64), torch.arange(5) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("kind", ["attention", "attention-from-pooled", "mean", "max", "first"])
def test_pooling_equals_a_loop(kind: str) -> None:
    states_BSD, mask_BS = states()
    pooling = make_pooling(kind, 4, 3).double()  # type: ignore[arg-type]
    pooled_BD = pooling(states_BSD, mask_BS, POOLED_BE)
    for row, length in enumerate(LENGTHS):
        rows = [states_BSD[row, place] for place in range(length)]
        if kind.startswith("attention"):
            assert isinstance(pooling, AttentionPooling | PooledAttention)
            key = pooling.key.requires_grad_(False)
            if isinstance(pooling, AttentionPooling):
                query_D = pooling.query_D.detach()
            else:  # Q = tanh(W p), K = tanh(W h)
                query = pooling.query.requires_grad_(False)
                query_D = (query.weight @ POOLED_BE[row] + query.bias).tanh()
            scores = [float((key.weight @ h + key.bias).tanh() @ query_D) / math.sqrt(4) for h in rows]
            total = sum(map(math.exp, scores))
            expected = sum((math.exp(s) / total * h for s, h in zip(scores, rows, strict=True)), torch.zeros(4))
        elif kind == "mean":
            expected = sum(rows, torch.zeros(4)) / length
        elif kind == "max":
            expected = torch.stack(rows).max(0).values
        else:
            expected = rows[0]
        torch.testing.assert_close(pooled_BD[row], expected.double())


@pytest.mark.parametrize("kind", ["attention", "attention-from-pooled", "mean", "max", "first"])
def test_the_contents_of_padding_have_no_effect(kind: str) -> None:
    states_BSD, mask_BS = states()
    pooling = make_pooling(kind, 4, 3).double()  # type: ignore[arg-type]
    for filler in (1e30, math.nan):
        filled_BSD = states_BSD.masked_fill(~mask_BS[:, :, None], filler)
        assert torch.equal(pooling(filled_BSD, mask_BS, POOLED_BE), pooling(states_BSD, mask_BS, POOLED_BE))


def test_attention_weights_sum_to_one_and_gradients_equal_finite_differences() -> None:
    states_BSD, mask_BS = states()
    states_BSD.requires_grad_()
    for pooling in (AttentionPooling(4).double(), PooledAttention(4, 3).double()):
        weights_BS = pooling.weights(states_BSD, mask_BS, POOLED_BE)
        torch.testing.assert_close(weights_BS.sum(1), torch.ones(3, dtype=torch.float64))
        given = (states_BSD, POOLED_BE.clone().requires_grad_())
        assert torch.autograd.gradcheck(lambda s, p, of=pooling: of(s, mask_BS, p), given, raise_exception=False)
