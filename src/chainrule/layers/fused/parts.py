"""When products of the project and fused parts of a block can be used, and what they share.

They are for one core in float32. Products and what is between them are compiled (`engines/fused/`).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.base.kernels import kernel_supports
from chainrule.engines.fused import kernels
from chainrule.engines.fused.products import PLAIN, multiply, workspace

NOTHING = np.empty(0, np.float32)


class Room(threading.local):
    """Room for the products of one thread; each thread creates its own."""

    def __init__(self) -> None:
        self.arrays = workspace()


_room = Room()


def products_support(*matrices: Tensor) -> bool:
    """Whether `product` can multiply these: one thread, float32 on the CPU."""
    return (
        all(kernel_supports(matrix, torch.float32) for matrix in matrices)
        and torch.get_num_threads() == 1
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def fused_kernels_support(stream_ND: Tensor) -> bool:
    """Whether fused parts can read this stream: as `product`, and with gradients."""
    return stream_ND.requires_grad and torch.is_grad_enabled() and products_support(stream_ND)


def normalise(stream_ND: Tensor, norm_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The LayerNorm of the stream, ND, and the mean and factor of each vector, N."""
    normed_ND, mean_N = torch.empty_like(stream_ND), stream_ND.new_empty(len(stream_ND))
    factor_N = torch.empty_like(mean_N)
    arrays = [one.numpy() for one in (normed_ND, mean_N, factor_N)]
    kernels.normalise(stream_ND.numpy(), norm_D.detach().numpy(), eps, *arrays)
    return normed_ND, mean_N, factor_N


def normalise_backward(
    stream_ND: Tensor, norm_D: Tensor, mean_N: Tensor, factor_N: Tensor, grad_ND: Tensor, skip_ND: Tensor
) -> Tensor:
    """Replace the gradient of the normalised stream by that of the stream -> the gradient of the weight.

    `skip_ND` is the gradient that reaches the stream round the norm.
    """
    norm_grad_D = torch.zeros_like(norm_D)
    inputs = [one.detach().numpy() for one in (stream_ND, norm_D, mean_N, factor_N, grad_ND, skip_ND, grad_ND)]
    kernels.normalise_backward(*inputs, norm_grad_D.numpy())
    return norm_grad_D


def product(
    left_NK: Tensor,
    right_KX: Tensor,
    *,
    base_NX: Tensor | None = None,
    finish: int = PLAIN,
    squares_NX: Tensor | None = None,
    out_NX: Tensor | None = None,
) -> Tensor:
    """finish(base + left·right), where `finish` is one of `engines/fused/products.py`.

    Factors that are neither contiguous nor transposed are copied. The result is written to `out_NX` if it is given,
    which may be the base.
    """
    left_NK, right_KX = _dense(left_NK), _dense(right_KX)
    (N, K), X = left_NK.shape, right_KX.shape[1]
    if out_NX is None:
        out_NX = left_NK.new_empty(N, X)
    base, squares = (NOTHING if one is None else flat_array(one) for one in (base_NX, squares_NX))
    factors = flat_array(left_NK), *left_NK.stride(), flat_array(right_KX), *right_KX.stride()
    multiply(*factors, base, out_NX.detach().numpy().reshape(-1), (N, K, X), finish, squares, _room.arrays)
    return out_NX


def _dense(matrix: Tensor) -> Tensor:
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def flat_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The numbers of a tensor that is contiguous or transposed, in the order in which they lie.

    `Tensor.numpy` would fix the size of the memory, which a model that is divided among processes frees between calls.
    """
    flat: np.ndarray[Any, Any] = np.from_dlpack(tensor.detach()).ravel("K")
    return flat


def add_product(stream_ND: Tensor, values_NX: Tensor, weight_DX: Tensor, kept_ND: Tensor | None) -> Tensor:
    """stream + values·weightᵀ, with dropout of what is added."""
    if kept_ND is None:
        return product(values_NX, weight_DX.t(), base_NX=stream_ND)
    return torch.addcmul(stream_ND, product(values_NX, weight_DX.t()), kept_ND)
