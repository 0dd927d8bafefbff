"""Torch's Muon for processors: the same update, computed in float32 and for all matrices of one shape together.

Muon (Jordan et al., 2024) replaces a matrix's momentum by the nearest orthogonal one, found by a few Newton-Schulz
iterations. Torch runs them in bfloat16, which processors without such units imitate at a ninth of the speed.
Legend: N matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` with another `step`; parameters, options and saved state are its own."""

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
        wanted_NRC = torch.stack([self._momentum(group, matrix) for matrix in matrices])
        moves_NRC = orthogonal(wanted_NRC, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * math.sqrt(max(1.0, matrices[0].shape[0] / matrices[0].shape[1]))
        for matrix, move_RC in zip(matrices, moves_NRC, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(move_RC, alpha=-rate)

    def _momentum(self, group: dict[str, Any], matrix: nn.Parameter) -> Tensor:
        """The gradient seen through its running mean, one step ahead (Nesterov)."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        mean: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
        return matrix.grad.lerp(mean, group["momentum"])


def orthogonal(matrices_NRC: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Newton-Schulz: singular values pushed towards 1, singular vectors kept -> NRC."""
    a, b, c = coefficients
    wide = matrices_NRC.mT if matrices_NRC.shape[1] > matrices_NRC.shape[2] else matrices_NRC
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = torch.bmm(wide, wide.mT)
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if matrices_NRC.shape[1] > matrices_NRC.shape[2] else wide
