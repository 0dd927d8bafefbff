"""A step of a beam by the kernel against the formula, row by row and head by head."""

from __future__ import annotations

import pytest
import torch

from chainrule.base.kernels import inference_kernel_supports
from chainrule.layers.attention import self_attention
from chainrule.layers.attention.beam_step import attend_step
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.self_attention import attend

CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("large", [1.0, 300.0])
def test_each_row_attends_to_its_own_positions_by_the_formula(scale: float | None, large: float) -> None:
    torch.manual_seed(0)
    A, W, N, capacity, H, E = 3, 4, 9, 12, 2, 7
    query_RHE, buffer = large * torch.randn(A * W, H, E), torch.randn(A, capacity, 2, H, E)
    owned_AWN = torch.rand(A, W, N) < 0.5
    owned_AWN[..., 0] = True
    with torch.inference_mode():
        mixed_RHE = attend_step(query_RHE, buffer, owned_AWN, scale)
    for row in range(A * W):
        kept_L2HE = buffer[row // W, :N][owned_AWN[row // W, row % W]]
        for head in range(H):
            key_LE, value_LE = kept_L2HE[:, 0, head], kept_L2HE[:, 1, head]
            scores_L = key_LE @ query_RHE[row, head] * (E**-0.5 if scale is None else scale)
            torch.testing.assert_close(mixed_RHE[row, head], scores_L.softmax(0) @ value_LE, **CLOSE)


def test_a_beam_steps_the_same_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    groups, width, H, E = 2, 3, 2, 4
    like = torch.empty(0)
    rows = groups * width

    def walk() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(2)
        projected_AX = torch.randn(groups, 3 * H * E, generator=generator)
        _, cache = attend(projected_AX, groups, H, KeyValueCache.empty(groups, H, 40, E, like))
        order_R, outputs = torch.arange(rows) // width, []
        for _ in range(20):
            assert cache is not None
            cache = cache.map_tensors(lambda part, order_R=order_R: part[order_R])
            mixed_RD, cache = attend(torch.randn(rows, 3 * H * E, generator=generator), rows, H, cache)
            order_R = torch.arange(rows) // width * width + torch.randint(width, (rows,), generator=generator)
            outputs.append(mixed_RD)
        return outputs

    calls: list[int] = []
    with torch.inference_mode():
        monkeypatch.setattr(self_attention, "attend_step", lambda *given: (calls.append(1), attend_step(*given))[1])
        by_kernel = walk()
        monkeypatch.setattr(self_attention, "inference_kernel_supports", lambda query: False)
        torch.testing.assert_close(by_kernel, walk(), **CLOSE)
    assert len(calls) > 10


def test_the_kernel_supports_float32_without_gradients() -> None:
    assert not inference_kernel_supports(torch.empty(1))
    with torch.no_grad():
        assert inference_kernel_supports(torch.empty(1))
        assert not inference_kernel_supports(torch.empty(1, dtype=torch.double))
