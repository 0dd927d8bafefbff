"""Any model over numpy arrays: natively where it computes with them, else through tensors on its device.

Evaluation, scoring, choices and compression are written once, over these methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.types import ArrayModel, Model, State

if TYPE_CHECKING:
    from torch import Tensor


def over_arrays(model: Any) -> ArrayModel:
    """The model over arrays. Gradients and dropout are the caller's: see `evaluating`."""
    native = native_arrays(model)
    return TensorArrays(model) if native is None else native


def native_arrays(model: Any) -> ArrayModel | None:
    """The model over arrays if it computes with them, without torch and with the same bits on every CPU."""
    return model.arrays if isinstance(model, Model) else None


class TensorArrays:
    """A model of tensors behind the interface of arrays."""

    def __init__(self, model: Any) -> None:
        self._model, self._device = model, device_of(model)

    def start(self, batch: int) -> State:
        return self._model.start(batch)

    def log_probs(self, tokens_BT: Array) -> Array:
        return _array(self._model.log_probs(self._tensor(tokens_BT)))

    def score(self, tokens_BT: Array, state: State) -> tuple[Array, State]:
        log_probs_BT, state = self._model.score(self._tensor(tokens_BT), state)
        return _array(log_probs_BT), state

    def step_probs(self, state: State, token_B: Array) -> tuple[Array, State]:
        log_probs_BV, state = self._model.step(state, self._tensor(token_B))
        return _array(log_probs_BV.exp().cpu().double()), state

    def step(self, state: State, token_B: Array) -> tuple[Array, State]:
        log_probs_BV, state = self._model.step(state, self._tensor(token_B))
        return _array(log_probs_BV), state

    def prefill(self, state: State, tokens_BT: Array) -> tuple[Array, State]:
        log_probs_BV, state = self._model.prefill(state, self._tensor(tokens_BT))
        return _array(log_probs_BV), state

    def extend(self, state: State, tokens_BT: Array) -> tuple[Array, State]:
        log_probs_BTV, state = self._model.extend(state, self._tensor(tokens_BT))
        return _array(log_probs_BTV), state

    def matched_orders(self, tokens_BT: Array, state: State = None) -> Array | None:
        return None

    def follow(self, state: State, tokens_BT: Array) -> Array:
        tokens = self._tensor(tokens_BT)
        log_probs_BTV, _ = self._model.extend(state, tokens[:, :-1])
        return _array(log_probs_BTV.gather(2, tokens[:, 1:, None]).squeeze(2))

    def select(self, state: State, rows_K: Array) -> State:
        return self._model.select(state, self._tensor(rows_K))

    def _tensor(self, tokens: Array) -> Tensor:
        return torch.as_tensor(tokens, dtype=torch.int64).to(self._device)


def _array(values: Tensor) -> Array:
    array: Array = values.cpu().numpy()
    return array
