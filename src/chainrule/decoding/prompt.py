"""What every way of decoding needs to know before it begins."""

from __future__ import annotations

import torch
from torch import nn

from chainrule.errors import ConfigError


def device_of(model: object) -> torch.device:
    """Where tokens for a model must live: with its parameters, or on the CPU if it has none."""
    if isinstance(model, nn.Module):
        for tensor in model.parameters():
            return tensor.device
    return torch.device("cpu")


def check_limit(max_new_tokens: int) -> None:
    """Refuse a length limit that leaves nothing to generate."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {max_new_tokens}, but at least 1 token must be asked for.")
