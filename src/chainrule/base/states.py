"""Joining and separating the states of prefixes, so that texts that began separately are continued together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from chainrule.base.lazy import torch
from chainrule.types import State, TensorHolder


def state_form(state: State) -> Hashable:
    """What the rows of a state have in common: states of equal form can be joined.

    Tensors must agree in everything but the number of rows, and anything else, which is the same for every row, must be
    equal. So prefixes of different lengths have different forms where a state keeps the whole prefix.
    """
    if isinstance(state, tuple | list):
        return (type(state).__name__, *map(state_form, state))
    if isinstance(state, dict):
        return tuple((key, state_form(part)) for key, part in state.items())
    if isinstance(state, TensorHolder):
        return state.form()
    if isinstance(state, np.ndarray):
        return "array", state.shape[1:], state.dtype
    if isinstance(state, torch.Tensor):
        return "tensor", tuple(state.shape[1:]), state.dtype, state.device
    form: Hashable = state
    return form


def separate_rows(state: State) -> State:
    """The same state, of which no row shares storage with another."""
    if isinstance(state, tuple):
        parts = [separate_rows(part) for part in state]
        make: Any = type(state)
        return tuple(parts) if make is tuple else make(*parts)
    if isinstance(state, list):
        return [separate_rows(part) for part in state]
    if isinstance(state, dict):
        return {key: separate_rows(part) for key, part in state.items()}
    return state.separate() if isinstance(state, TensorHolder) else state


def join_states(states: Sequence[State]) -> State:
    """The rows of several states of the same form, in order, as one state."""
    first = states[0]
    if isinstance(first, tuple):
        parts = [join_states(parts) for parts in zip(*states, strict=True)]
        make: Any = type(first)
        return tuple(parts) if make is tuple else make(*parts)
    if isinstance(first, list):
        return [join_states(parts) for parts in zip(*states, strict=True)]
    if isinstance(first, dict):
        return {key: join_states([state[key] for state in states]) for key in first}
    if isinstance(first, TensorHolder):
        return first.join(states[1:])
    if isinstance(first, np.ndarray):
        return np.concatenate(states)
    return torch.cat(list(states)) if isinstance(first, torch.Tensor) else first
