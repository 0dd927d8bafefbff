"""When kernels compiled by numba can replace torch, and which floating-point shortcuts they may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
"""Flags for `fastmath` that let sums use vector instructions. Infinities keep their meaning: masks rely on them."""


_suspended = False


@contextmanager
def kernels_suspended() -> Iterator[None]:
    """Compute with torch alone, so that every operation can be replaced."""
    global _suspended
    before, _suspended = _suspended, True
    try:
        yield
    finally:
        _suspended = before


def kernel_supports(tensor: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether a kernel for numbers of these types can read the tensor."""
    return not _suspended and tensor.device.type == "cpu" and tensor.dtype in dtypes


def inference_kernel_supports(tensor: Tensor) -> bool:
    """Whether an inference kernel can read the tensor: float32 on the CPU, and no gradient is recorded."""
    return kernel_supports(tensor, torch.float32) and not torch.is_grad_enabled()
