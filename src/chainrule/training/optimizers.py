"""Torch's own optimisers, with the parameters sorted into those that decay and those that do not.

Muon (Jordan et al., 2024) takes the matrices between input and output; embeddings, output tables, norms and biases stay
with AdamW beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from chainrule.config import TrainingConfig
from chainrule.errors import ConfigError

PRETRAINED = "pretrained.encoder."
"""What is learned already is tuned at a rate of its own."""


def make_optimizers(model: nn.Module, config: TrainingConfig, lr: float) -> list[Optimizer]:
    """The optimisers that together update every parameter of a model; each group knows its full rate as `full_lr`."""
    learned = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    tuned = [(name, parameter) for name, parameter in learned if name.startswith(PRETRAINED)]
    named = [(name, parameter) for name, parameter in learned if not name.startswith(PRETRAINED)]
    if config.optimizer == "sgd":
        made: list[Optimizer] = [SGD(_groups(named, config), lr=lr, momentum=config.momentum)]
    elif config.optimizer == "muon":
        inner = [(name, p) for name, p in named if p.dim() == 2 and not _is_table(name)]
        outer = [(name, p) for name, p in named if p.dim() != 2 or _is_table(name)]
        made = [*_muon(inner, config, lr), *_adamw(outer, config, config.table_lr)]
    else:
        made = _adamw(named, config, lr)
    made += _adamw(tuned, config, config.tuned_lr)
    for optimizer in made:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return made


def set_rate(optimizers: Iterable[Optimizer], multiplier: float) -> None:
    """Give every group its share of its full rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * multiplier


def _is_table(name: str) -> bool:
    """A row a word: embedding and output matrices, and learned positions."""
    return name.startswith(("embedding.", "source_embedding.", "output.")) or "table" in name


def _groups(named: list[tuple[str, nn.Parameter]], config: TrainingConfig) -> list[dict[str, Any]]:
    """Matrices decay; vectors (norms, biases) do not."""
    matrices = [p for _, p in named if p.dim() >= 2]
    vectors = [p for _, p in named if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _adamw(named: list[tuple[str, nn.Parameter]], config: TrainingConfig, lr: float) -> list[Optimizer]:
    betas = (config.beta1, config.beta2)
    return [AdamW(_groups(named, config), lr=lr, betas=betas, fused=True)] if named else []


def _muon(named: list[tuple[str, nn.Parameter]], config: TrainingConfig, lr: float) -> list[Optimizer]:
    if not named:
        return []
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError("training.optimizer = 'muon' needs torch 2.9 or newer; update torch or choose 'adamw'")
    from chainrule.training.muon import Float32Muon

    matrices = [p for _, p in named]
    kind = Float32Muon if matrices[0].device.type == "cpu" else torch.optim.Muon
    momentum = config.momentum or 0.95
    return [kind(matrices, lr=lr, weight_decay=config.weight_decay, momentum=momentum)]
