"""Parameters by name and kind: those of a submodule, which of them are tables, and which are used together.

A table has one row per word, position or bucket, of which a batch uses a few.

Optimisers treat tables differently from the matrices between input and output. A module that holds a table declares it:

    class AddedPositions(HasTables, nn.Module):
        tables = ("table_CD",)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn


class HasTables:
    """Mixin for modules whose own parameters are tables. An `nn.Embedding` needs no declaration."""

    tables: ClassVar[tuple[str, ...]] = ()  # attribute names of parameters
    only_tables: ClassVar[bool] = False  # every parameter of the module and of the modules inside it


class ShardUnit:
    """Mixin for modules that compute only when they are called.

    If a model is divided among processes, the weights of such a module are gathered for its calls alone.
    """

    divided = False  # whether they are: compiled kernels may not hold on to them then

    def bind(self) -> None:
        """Take up the parameters anew; called before each call of a module whose parameters are gathered for it."""


def table_parameters(model: nn.Module) -> set[int]:
    """The ids of the parameters of a model that are tables."""
    found: list[object] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            found.append(module.weight)
        elif isinstance(module, HasTables):
            found += module.parameters() if module.only_tables else (getattr(module, name) for name in module.tables)
    return {id(parameter) for parameter in found if isinstance(parameter, nn.Parameter)}


def weights_below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of a submodule, under its own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
