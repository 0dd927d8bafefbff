"""A model's memory of a prefix, and what is done with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

State = Any
"""A model's memory of a prefix: a nest of tuples, lists and dicts whose tensors all have the batch first, or of objects
with `map_tensors(change)` (see `TensorHolder`). Anything else in it (an int, None) is the same for every row."""


class TensorHolder:
    """A part of a state that maps its own tensors, for example because rows share them."""

    __slots__ = ()

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The same part with `change` applied to its tensors, as if every row had its own."""
        raise TypeError(f"{type(self).__name__} must define map_tensors")

    def form(self) -> Hashable:
        """Equal for parts that `join` can join; by default a part is like no other."""
        return id(self)

    @property
    def independent(self) -> bool:
        """Whether what is computed from a row never depends on the other rows, bit by bit, however many there are."""
        return False

    def separate(self) -> Any:
        """The same rows, none of which shares storage with another; by default rows never do."""
        return self

    def join(self, others: Sequence[Any]) -> Any:
        """The rows of this part, then those of others of the same form."""
        raise TypeError(f"{type(self).__name__} cannot be joined")


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `change` to every tensor of a state."""
    if isinstance(state, tuple):
        parts = [map_state(change, part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if isinstance(state, list):
        return [map_state(change, part) for part in state]
    if isinstance(state, dict):
        return {key: map_state(change, part) for key, part in state.items()}
    if isinstance(state, TensorHolder):
        return state.map_tensors(change)
    return change(state) if hasattr(state, "index_select") else state


def select_rows(state: State, rows_K: Tensor) -> State:
    """Reorder every tensor of a state by its first dimension."""
    return map_state(lambda tensor: tensor.index_select(0, rows_K), state)


def detach_state(state: State) -> State:
    """Cut a state from the graph that made it, as truncated back-propagation does between chunks."""
    return map_state(lambda tensor: tensor.detach(), state)
