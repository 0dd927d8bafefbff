"""What objectives need of a model. The models of `models/` have these members; objectives do not import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from chainrule.types import Batch, Outputs, State


class TokenOutput(Protocol):
    """An output layer: features to a distribution over the tokens."""

    size: int

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """The training loss in nats, summed over the positions, each multiplied by its weight."""
        ...

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets -> N."""
        ...

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every token -> NV."""
        ...


class Network(Protocol):
    """A model with an output layer that reads a batch in parallel."""

    @property
    def output(self) -> TokenOutput: ...

    def __call__(self, batch: Batch, state: State = None) -> Outputs: ...


class SteppingNetwork(Network, Protocol):
    """A network that also predicts token by token, so that objectives can sample from it."""

    eos: int
    window: int | None

    def start(self, batch: Any) -> State: ...

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]: ...

    def select(self, state: State, rows_K: Tensor) -> State: ...

    def policy_features(self, batch: Batch) -> Tensor:
        """Features BTD of the distribution from which `step` samples; `forward` may omit parts with their own loss."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def eval(self) -> Any: ...
