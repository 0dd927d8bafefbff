"""Torch's optimisers, with the parameters of a model sorted into groups.

Weight decay applies to matrices, not to vectors (norms and biases). Muon (Jordan et al., 2024) updates the matrices
between input and output; AdamW updates the rest of the model: embeddings, output tables, norms and biases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from chainrule.base.parameters import table_parameters
from chainrule.config import TrainingConfig
from chainrule.errors import ConfigError


def make_optimizers(model: Any, config: TrainingConfig, lr: float) -> list[Optimizer]:
    """The optimisers that together update every parameter of a model; `full_lr` of a group is its rate at 100%."""
    pretrained = {id(parameter) for parameter in model.tuned_parameters}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tuned = [parameter for parameter in trained if id(parameter) in pretrained]
    fresh = [parameter for parameter in trained if id(parameter) not in pretrained]
    if config.optimizer == "sgd":
        optimizers: list[Optimizer] = [SGD(_groups(fresh, config), lr=lr, momentum=config.momentum)]
    elif config.optimizer == "muon":
        tables = table_parameters(model)
        inner = [parameter for parameter in fresh if parameter.dim() == 2 and id(parameter) not in tables]
        outer = [parameter for parameter in fresh if parameter.dim() != 2 or id(parameter) in tables]
        optimizers = [*_muon(inner, config, lr), *_adamw(outer, config, config.table_lr)]
    else:
        optimizers = _adamw(fresh, config, lr)
    optimizers += _adamw(tuned, config, config.tuned_lr)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: Iterable[Optimizer], multiplier: float) -> None:
    """Set the learning rate of every group to a multiple of its full rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * multiplier


def complete_states(optimizers: Iterable[Optimizer]) -> None:
    """Give every parameter the state that its optimiser would create with its first gradient."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            slots = ["momentum_buffer"] if group.get("momentum") else []
            slots = ["exp_avg", "exp_avg_sq"] if isinstance(optimizer, AdamW) else slots
            for parameter in (one for one in group["params"] if not optimizer.state[one]):
                state = {slot: torch.zeros_like(parameter) for slot in slots}
                optimizer.state[parameter] = (
                    {"step": torch.zeros(()), **state} if isinstance(optimizer, AdamW) else state
                )


def _groups(parameters: list[nn.Parameter], config: TrainingConfig) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors without."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _adamw(parameters: list[nn.Parameter], config: TrainingConfig, lr: float) -> list[Optimizer]:
    betas = (config.beta1, config.beta2)
    return [AdamW(_groups(parameters, config), lr=lr, betas=betas, fused=True)] if parameters else []


def _muon(matrices: list[nn.Parameter], config: TrainingConfig, lr: float) -> list[Optimizer]:
    if not matrices:
        return []
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError("training.optimizer = 'muon' needs torch 2.9 or newer; update torch or choose 'adamw'")
    from chainrule.training.muon import Float32Muon

    kind = Float32Muon if matrices[0].device.type == "cpu" else torch.optim.Muon
    momentum = config.momentum or 0.95
    return [kind(matrices, lr=lr, weight_decay=config.weight_decay, momentum=momentum)]
