"""Norms of gradients: the global one, by which gradients are clipped, and those of single layers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chainrule.training.placement import Placement

TOTAL = "gradient_norm"
"""The name of the global norm in `metrics.jsonl`; that of a layer is `gradient_norm/LAYER`."""


class GradientNorms(NamedTuple):
    """The norm of each gradient, by the name of its parameter, and that of all of them together."""

    by_parameter: dict[str, Tensor]
    total: Tensor

    def figures(self, *, layers: bool) -> dict[str, float]:
        """For the log: the global norm, and with `layers` that of each layer, the parameters of one module."""
        figures = {TOTAL: float(self.total)}
        if layers:
            squares: dict[str, float] = {}
            for name, norm in self.by_parameter.items():
                layer = name.rpartition(".")[0] or name
                squares[layer] = squares.get(layer, 0.0) + float(norm) ** 2
            figures |= {f"{TOTAL}/{layer}": square**0.5 for layer, square in squares.items()}
        return figures


def gradient_norms(model: nn.Module, placement: Placement | None = None) -> GradientNorms:
    """The Euclidean norms of the gradients that a model has now."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norms = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
    if placement is not None:
        norms = placement.whole(norms)
    device = next(iter(norms.values())).device
    return GradientNorms(norms, torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms.values()])))
