"""Torch's Muon for CPUs: the same update, computed in float32 and for all matrices of one shape together.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, found by a few
Newton-Schulz iterations. Torch runs them in bfloat16, which CPUs without bfloat16 units emulate at a ninth of the
speed. Stacks of matrices have the shape (matrices, rows, columns).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` with another `step`; it has the same parameters, options and saved state."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[tuple(parameter.shape)].append(parameter)
            for matrices in shapes.values():
                self._update(group, matrices)
        return loss

    def _update(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        momenta = torch.stack([self._momentum(group, matrix) for matrix in matrices])
        moves = orthogonalise(momenta, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * math.sqrt(max(1.0, matrices[0].shape[0] / matrices[0].shape[1]))
        for matrix, move in zip(matrices, moves, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-rate)

    def _momentum(self, group: dict[str, Any], matrix: nn.Parameter) -> Tensor:
        """Nesterov momentum: the gradient mixed with its running mean."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        mean: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
        return matrix.grad.lerp(mean, group["momentum"])


def orthogonalise(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Move the singular values of each matrix towards 1 by Newton-Schulz iterations; singular vectors stay."""
    a, b, c = coefficients
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = torch.bmm(wide, wide.mT)
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if matrices.shape[1] > matrices.shape[2] else wide
