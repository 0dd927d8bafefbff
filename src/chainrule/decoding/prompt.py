"""Feeding known tokens to a stepper, whichever way it does it best.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.types import State, Stepper


def device_of(model: object) -> torch.device:
    """Where tokens for a model must live: with its parameters, or on the CPU if it has none."""
    if isinstance(model, nn.Module):
        for tensor in model.parameters():
            return tensor.device
    return torch.device("cpu")


def prefill(stepper: Stepper, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
    """Append T ≥ 1 known tokens to each prefix -> log p(. | prefix) BV after the last, and the longer state.

    A stepper may offer `prefill(state, tokens_BT)` that reads them all in parallel; otherwise they are stepped through.
    """
    if tokens_BT.shape[1] > 1 and hasattr(stepper, "prefill"):
        log_probs_BV, state = stepper.prefill(state, tokens_BT)
        return log_probs_BV, state
    for token_B in tokens_BT.unbind(1):
        log_probs_BV, state = stepper.step(state, token_B)
    return log_probs_BV, state


def check_limit(max_new_tokens: int) -> None:
    """Refuse a length limit that leaves nothing to generate."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {max_new_tokens}, but at least 1 token must be asked for.")
