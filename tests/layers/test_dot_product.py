"""Attention by plain products equals attention by the fused kernel, for every mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from chainrule.layers.attention.dot_product import FEW_QUERIES, dot_product_attention


@pytest.mark.parametrize("queries", [1, 2, 5, FEW_QUERIES, FEW_QUERIES + 1])
@pytest.mark.parametrize("kind", ["none", "rows", "bias"])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_both_kernels_give_the_same(queries: int, kind: str, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, size, 8, generator=generator) for size in (queries, 7, 7))
    mask = None
    if kind == "rows":
        mask = torch.rand(3, 1, queries, 7, generator=generator) > 0.4
        mask[..., 0] = True
    elif kind == "bias":
        mask = torch.randn(1, 2, queries, 7, generator=generator)
    expected = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert torch.allclose(dot_product_attention(query, key, value, mask, scale=scale), expected, atol=1e-5)
