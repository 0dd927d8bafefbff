"""The state of a training as named tensors and plain values, so that resuming is bit-exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chainrule.errors import RunError
from chainrule.types import State, map_state


@dataclass
class TrainingState:
    """Progress of a training: the plain values of a checkpoint. The field names are saved in files."""

    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # in steps only, for tokens per second
    seconds: float = 0.0  # including validation and saving
    best: float = math.inf  # selection metric: validation loss in nats per token, or a negated metric such as -BLEU
    best_step: int = 0
    plateaus: int = 0  # validations without improvement
    validated: int = 0  # number of validations so far
    averaged: int = 0  # number of steps whose weights are averaged
    log_length: int = 0  # bytes of metrics.jsonl
    window_loss: float = 0.0  # summed since the last log line
    window_count: int = 0
    window_steps: int = 0
    window_figures: dict[str, float] = field(default_factory=dict)  # further figures: of the objective, gradient norms
    stale: int = 0  # validations since the best
    measured_step: int = -1  # of the last validation
    validation_seconds: float = 0.0  # spent on validations
    ended_step: int = -1  # at which the budget was spent and the training completed


def read_training_state(values: Mapping[str, Any], folder: Path) -> TrainingState:
    """The training state among the plain values of a checkpoint."""
    default, values = asdict(TrainingState()), {"validation_seconds": 0.0, **values}  # absent until version 0.3
    wrong = [name for name, like in default.items() if not _is_like(values.get(name), like)]
    if wrong:
        raise RunError(
            f"the checkpoint of {folder} has no valid {wrong[0]}; restore the folder training, or choose another --out"
        )
    return TrainingState(**{name: values[name] for name in default})


def _is_like(value: Any, like: Any) -> bool:
    return type(value) in ((int, float) if isinstance(like, float) else (type(like),))


def optimizer_tensors(optimizers: list[Optimizer]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the plain values of the optimisers' states."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for index, slots in optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                part = tensors if isinstance(value, Tensor) else values
                part[f"optimizer/{number}/{index}/{slot}"] = value
    return tensors, values


def restore_optimizers(
    optimizers: list[Optimizer],
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    like: Callable[[Tensor, Tensor], Tensor] = lambda tensor, own: tensor,
) -> None:
    """Set the states of the optimisers to what `optimizer_tensors` returned.

    `like` gives the part of a tensor that belongs to a parameter of this process.
    """
    parameters = [[one for group in optimizer.param_groups for one in group["params"]] for optimizer in optimizers]
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for name, value in {**tensors, **values}.items():
        if name.startswith("optimizer/"):
            _, number, index, slot = name.split("/", 3)
            if isinstance(value, Tensor) and int(index) < len(parameters[int(number)]):
                value = like(value, parameters[int(number)][int(index)])
            states[int(number)].setdefault(int(index), {})[slot] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def state_tensors(state: State) -> dict[str, Tensor]:
    """The tensors of a carried state, numbered in the order of traversal."""
    found: list[Tensor] = []
    map_state(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    # Cloned: two parts of a state may be views of one tensor, and a file stores each tensor separately.
    return {f"state/{number}": tensor.clone() for number, tensor in enumerate(found)}


def restore_state(like: State, tensors: dict[str, Tensor]) -> State:
    """A state like `like` with the saved tensors."""
    numbers = iter(range(len(tensors)))
    return map_state(lambda tensor: tensors[f"state/{next(numbers)}"].to(tensor.device), like)


class Average:
    """The running mean of a model's weights (Polyak averaging)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        self.count += 1
        for name, parameter in model.named_parameters():
            if self.count == 1:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter.detach(), 1.0 / self.count)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights with the mean; a second call restores them."""
        for name, parameter in model.named_parameters():
            mean = self.mean[name].clone()
            self.mean[name].copy_(parameter.detach())
            parameter.copy_(mean)
