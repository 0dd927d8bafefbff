"""Training and evaluation mode of models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Disable gradients, and dropout in models that have it; restore the previous mode afterwards."""
    if not isinstance(model, nn.Module) or not any(module.training for module in model.modules()):
        with torch.inference_mode():  # setting the mode again would take as long as scoring a short line
            yield
        return
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)
