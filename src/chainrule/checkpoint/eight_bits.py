"""Weights of 8 bits: a matrix as integers from -127 to 127 and one scale per row.

    W ≈ scale · codes        scale = max |row| / 127

In a file, NAME holds the codes and NAME/scale the scales; other tensors are stored as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chainrule.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

SCALE = "/scale"
LARGEST = 127
SMALLEST_SCALE = 1e-30
"""For rows of zeros."""


def is_matrix(tensor: Tensor) -> bool:
    """Whether a tensor of a model is rounded."""
    return tensor.dim() == 2 and tensor.is_floating_point()


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The codes of a matrix, 8-bit integers of its shape, and the scale of each row."""
    import torch

    scale_R1 = matrix.abs().amax(1, keepdim=True).clamp_min(SMALLEST_SCALE) / LARGEST
    return (matrix / scale_R1).round().to(torch.int8), scale_R1[:, 0]


def dequantise(codes: Tensor, scale_R: Tensor) -> Tensor:
    """The matrix that codes and scales stand for."""
    return codes.to(scale_R.dtype) * scale_R[:, None]


def quantise_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors, with every matrix as codes and scales."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if is_matrix(tensor):
            stored[name], stored[name + SCALE] = quantise(tensor)
        else:
            stored[name] = tensor
    return stored


def dequantise_weights(stored: dict[str, Tensor], damaged: RunError) -> dict[str, Tensor]:
    """Named tensors without codes; `damaged` is raised if scales do not fit."""
    weights = {name: tensor for name, tensor in stored.items() if not name.endswith(SCALE)}
    for name, scale_R in stored.items():
        if not name.endswith(SCALE):
            continue
        codes = weights.get(name.removesuffix(SCALE))
        if codes is None or codes.dim() != 2 or scale_R.shape != codes.shape[:1]:
            raise damaged
        weights[name.removesuffix(SCALE)] = dequantise(codes, scale_R)
    return weights
