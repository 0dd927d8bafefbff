"""When the fused parts of a block can be used, and what they share.

They are for training on one core in float32, where torch's operations between the products take about half of the time
of a step. The products are torch's; the rest is compiled (`engines/fused/kernels.py`) and runs on one core.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chainrule.base.kernels import kernel_supports
from chainrule.engines.fused import kernels


def fused_kernels_support(stream_ND: Tensor) -> bool:
    """Whether fused parts can read this stream: one thread, with gradients, in float32 on the CPU."""
    return (
        stream_ND.requires_grad
        and torch.is_grad_enabled()
        and kernel_supports(stream_ND, torch.float32)
        and torch.get_num_threads() == 1
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


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


def add_product(stream_ND: Tensor, values_NX: Tensor, weight_DX: Tensor, kept_ND: Tensor | None) -> Tensor:
    """stream + values·weightᵀ, with dropout of what is added."""
    if kept_ND is None:
        return torch.addmm(stream_ND, values_NX, weight_DX.t())
    return torch.addcmul(stream_ND, torch.mm(values_NX, weight_DX.t()), kept_ND)
