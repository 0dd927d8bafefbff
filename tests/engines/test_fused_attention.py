"""The kernel of causal attention against torch, also for some of the queries, and the Transformers that use it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from builders import small_model
from chainrule.base.kernels import kernels_suspended
from chainrule.layers.blocks import Block, BlockShape
from chainrule.layers.fused.attention import Heads, attend_fused


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "heads", "length", "width"), [(2, 3, 70, 16), (1, 2, 32, 24), (3, 1, 5, 64)])
def test_the_kernel_equals_torch(rows: int, heads: int, length: int, width: int) -> None:
    projected_NX = torch.randn(rows * length, 3 * heads * width)
    none = torch.empty(0, 0)
    query, key, value = projected_NX.view(rows, length, 3, heads, width).permute(2, 0, 3, 1, 4).double()
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.4).transpose(1, 2)
    scores = (query @ key.transpose(2, 3) * 0.4).masked_fill(~torch.ones(length, length).tril().bool(), -np.inf)
    for keep in (0, 1, length // 2, length - 1):
        mixed, log_sum_BHT = attend_fused(projected_NX, Heads(rows, heads, 0.4, none, none), keep=keep)
        assert torch.allclose(mixed.view(rows, length - keep, heads, width).double(), expected[:, keep:], atol=2e-6)
        assert torch.allclose(log_sum_BHT[..., keep:].double(), scores.logsumexp(-1)[..., keep:], atol=2e-6)


@pytest.mark.parametrize("pre", [True, False])
def test_a_block_gives_the_newer_positions(pre: bool) -> None:
    torch.manual_seed(2)
    block = Block(BlockShape(width=32, heads=2, inner=48, pre=pre, bias=True, activation="gelu")).eval()
    stream_ND = torch.randn(3 * 20, 32)
    with torch.no_grad():
        newer_ND = block.newer(stream_ND, 3, 7)
        with kernels_suspended():
            whole_ND, _ = block(stream_ND, 3)
            assert torch.equal(block.newer(stream_ND, 3, 7), whole_ND.view(3, 20, 32)[:, 7:].flatten(0, 1))
    assert torch.allclose(newer_ND, whole_ND.view(3, 20, 32)[:, 7:].flatten(0, 1), atol=1e-5)


@pytest.mark.parametrize("chunk", [4, 8, 12, 5])
def test_long_texts_have_the_scores_of_single_steps(chunk: int) -> None:
    """Windows of 8 tokens that are full at the end of a chunk, and others."""
    model = small_model("transformer", context=8).eval()
    tokens_BT = torch.randint(model.vocab_size, (2, 44), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), kernels_suspended():
        state, before_B, expected = model.start(2), torch.full((2,), model.eos), []
        for t in range(tokens_BT.shape[1]):
            log_probs_BV, state = model.step(state, before_B)
            before_B = tokens_BT[:, t]
            expected.append(log_probs_BV.gather(1, before_B[:, None]))
    with torch.no_grad():
        state, found = model._start_of_torch(2), []
        for part_BT in tokens_BT.split(chunk, 1):
            log_probs_BT, state = model.score(part_BT, state)
            found.append(log_probs_BT)
        after_BV, _ = model.step(state, torch.zeros(2, dtype=torch.int64))
    assert torch.allclose(torch.cat(found, 1), torch.cat(expected, 1), atol=1e-5)
    assert torch.allclose(after_BV.exp().sum(1), torch.ones(2), atol=1e-5)
