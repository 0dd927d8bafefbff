"""Which optimiser, learning rate, betas and weight decay each parameter gets."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from chainrule.base.parameters import HasTables
from chainrule.config import TrainingConfig
from chainrule.training.optimizers import make_optimizers, set_rate

TABLES_AND_VECTORS = ("embedding.weight", "inner.bias", "output.weight", "output.bias")


class Output(HasTables, nn.Linear):
    """An output layer: one row per word."""

    only_tables = True


class Model(nn.Module):
    """The kinds of parameters: tables, a matrix between them, vectors, and a pretrained encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 4)
        self.output = Output(4, 5)
        self.encoder = nn.Linear(3, 4)

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return list(self.encoder.parameters())


def groups(**options: Any) -> dict[str, tuple[Optimizer, dict[str, Any]]]:
    """The optimiser and the parameter group of every parameter of a model, with a learning rate of 0.5."""
    model = Model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        names[id(parameter)]: (optimizer, group)
        for optimizer in make_optimizers(model, TrainingConfig(**options), lr=0.5)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert set(found) == set(names.values())
    return found


def rates(**options: Any) -> dict[str, float]:
    return {name: group["lr"] for name, (_, group) in groups(**options).items()}


def test_adamw_uses_lr_and_the_tuned_rate_for_a_pretrained_encoder() -> None:
    found = rates(optimizer="adamw", tuned_lr=0.125)
    assert found.pop("encoder.weight") == found.pop("encoder.bias") == 0.125
    assert set(found.values()) == {0.5}


def test_muon_uses_lr_for_matrices_and_the_table_rate_for_the_rest() -> None:
    found = rates(optimizer="muon", table_lr=0.25, tuned_lr=0.125)
    assert {name: found.pop(name) for name in TABLES_AND_VECTORS} == dict.fromkeys(TABLES_AND_VECTORS, 0.25)
    assert found == {"inner.weight": 0.5, "encoder.weight": 0.125, "encoder.bias": 0.125}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_table_rate_is_for_muon_alone(optimizer: str) -> None:
    assert rates(optimizer=optimizer, table_lr=0.25) == rates(optimizer=optimizer)


def test_the_default_rates() -> None:
    found = rates(optimizer="muon")
    assert (found["embedding.weight"], found["encoder.weight"]) == (3e-3, 5e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_betas_reach_every_group_of_adamw(optimizer: str) -> None:
    for name, (made, group) in groups(optimizer=optimizer, beta1=0.6, beta2=0.7).items():
        if isinstance(made, AdamW):
            assert group["betas"] == (0.6, 0.7), name
        else:
            assert (optimizer, name) == ("muon", "inner.weight")
    _, group = groups(optimizer=optimizer)["embedding.weight"]
    assert group["betas"] == (0.9, 0.99)


def test_momentum_is_of_sgd_and_muon() -> None:
    made, group = groups(optimizer="sgd", momentum=0.8)["inner.weight"]
    assert isinstance(made, SGD)
    assert group["momentum"] == 0.8
    assert groups(optimizer="muon", momentum=0.8)["inner.weight"][1]["momentum"] == 0.8
    assert groups(optimizer="muon")["inner.weight"][1]["momentum"] == 0.95


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_matrices_decay_and_vectors_do_not(optimizer: str) -> None:
    for name, (_, group) in groups(optimizer=optimizer, weight_decay=0.01).items():
        assert group["weight_decay"] == (0.0 if name.endswith("bias") else 0.01), name


def test_a_schedule_multiplies_the_rate_of_each_group() -> None:
    optimizers = make_optimizers(Model(), TrainingConfig(optimizer="muon", table_lr=0.25, tuned_lr=0.125), lr=0.5)
    for multiplier in (0.5, 0.1):
        set_rate(optimizers, multiplier)
        found = {group["lr"] for optimizer in optimizers for group in optimizer.param_groups}
        assert found == {0.5 * multiplier, 0.25 * multiplier, 0.125 * multiplier}
