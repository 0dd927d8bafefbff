"""Compiling models, and leaving out what a compiler of graphs cannot follow.

`torch.compiler.disable` imports the compiler, which takes seconds; here that happens when something is to be compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_left_out: list[list[Callable[..., Any]]] = []


def left_out(function: F) -> F:
    """A function that is called as it is, also inside a model that is compiled."""
    held: list[Callable[..., Any]] = [function]
    _left_out.append(held)

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        return held[0](*arguments, **named)

    return call  # type: ignore[return-value]


def compile_model(model: Any) -> Any:
    """torch.compile, around what is left out."""
    for held in _left_out:
        held[0] = torch.compiler.disable(held[0])
    return torch.compile(model)
