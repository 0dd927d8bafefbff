"""Products with a vocabulary and exponentials of scores: compiled on one core in float32, elsewhere by torch."""

from __future__ import annotations

import torch
from torch import Tensor

from chainrule.engines.fused import kernels
from chainrule.layers.fused.parts import NOTHING, flat_array, product, products_support


def multiply(left_NK: Tensor, right_KX: Tensor, out_NX: Tensor, *, add: bool = False) -> Tensor:
    """Write left·right, or add it; the result is contiguous."""
    if products_support(left_NK, right_KX, out_NX):
        return product(left_NK, right_KX, base_NX=out_NX if add else None, out_NX=out_NX)
    return out_NX.addmm_(left_NK, right_KX) if add else torch.mm(left_NK, right_KX, out=out_NX)


def exponentiate(scores_MV: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor]:
    """Replace scores by e^(score + bias - highest of the row) -> the highest and the sum of each row, M1 each."""
    if not products_support(scores_MV):
        if bias_V is not None:
            scores_MV.add_(bias_V)
        highest_M1 = scores_MV.amax(1, keepdim=True)
        return highest_M1, scores_MV.sub_(highest_M1).exp_().sum(1, keepdim=True)
    highest_M1, sums_M1 = scores_MV.new_empty(len(scores_MV), 1), scores_MV.new_empty(len(scores_MV), 1)
    bias = NOTHING if bias_V is None else flat_array(bias_V)
    kernels.exponentiate(scores_MV.numpy(), bias, highest_M1.numpy()[:, 0], sums_M1.numpy()[:, 0])
    return highest_M1, sums_M1
