"""A step of a beam by the kernel against the formula, row by row and head by head.

Legend: R rows, A groups, W rows of a group, N positions stored, C room, H heads, E width of a head.
"""

from __future__ import annotations

import pytest
import torch

from chainrule.layers.attention.beam_step import attend_step, serves
from chainrule.layers.attention.self_attention import KeyValueCache, attend
from chainrule.layers.attention.self_attention import self_attention as attention

CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("large", [1.0, 300.0])
def test_each_row_finds_what_the_formula_finds_among_its_own(scale: float | None, large: float) -> None:
    torch.manual_seed(0)
    A, W, N, C, H, E = 3, 4, 9, 12, 2, 7
    query_RHE, pairs_AC2HE = large * torch.randn(A * W, H, E), torch.randn(A, C, 2, H, E)
    own_AWN = torch.rand(A, W, N) < 0.5
    own_AWN[..., 0] = True
    with torch.inference_mode():
        found_RHE = attend_step(query_RHE, pairs_AC2HE, own_AWN, scale)
    for row in range(A * W):
        kept_LE2 = pairs_AC2HE[row // W, :N][own_AWN[row // W, row % W]]
        for head in range(H):
            key_LE, value_LE = kept_LE2[:, 0, head], kept_LE2[:, 1, head]
            scores_L = key_LE @ query_RHE[row, head] * (E**-0.5 if scale is None else scale)
            torch.testing.assert_close(found_RHE[row, head], scores_L.softmax(0) @ value_LE, **CLOSE)


def test_a_beam_steps_as_it_would_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    groups, width, H, E = 2, 3, 2, 4
    like = torch.empty(0)
    rows = groups * width

    def walk() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(2)
        projected_AX = torch.randn(groups, 3 * H * E, generator=generator)
        _, cache = attend(projected_AX, groups, H, KeyValueCache.empty(groups, H, 40, E, like))
        order_R, found = torch.arange(rows) // width, []
        for _ in range(20):
            assert cache is not None
            cache = cache.map_tensors(lambda part, order_R=order_R: part[order_R])
            mixed_RD, cache = attend(torch.randn(rows, 3 * H * E, generator=generator), rows, H, cache)
            order_R = torch.arange(rows) // width * width + torch.randint(width, (rows,), generator=generator)
            found.append(mixed_RD)
        return found

    calls: list[int] = []
    with torch.inference_mode():
        monkeypatch.setattr(attention, "attend_step", lambda *given: (calls.append(1), attend_step(*given))[1])
        by_kernel = walk()
        monkeypatch.setattr(attention, "serves", lambda query: False)
        torch.testing.assert_close(by_kernel, walk(), **CLOSE)
    assert len(calls) > 10


def test_the_kernel_has_no_gradients_and_one_precision() -> None:
    assert not serves(torch.empty(1))
    with torch.no_grad():
        assert serves(torch.empty(1))
        assert not serves(torch.empty(1, dtype=torch.double))
