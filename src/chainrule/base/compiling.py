"""torch.compile for whole models, with functions that the compiler must not trace.

`torch.compiler.disable` imports the compiler, which takes seconds. Here it is imported only when a model is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_uncompiled: list[list[Callable[..., Any]]] = []


def uncompiled(function: F) -> F:
    """Mark a function that runs as plain Python, also inside a compiled model."""
    holder: list[Callable[..., Any]] = [function]
    _uncompiled.append(holder)

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        return holder[0](*arguments, **named)

    return call  # type: ignore[return-value]


def compile_model(model: Any) -> Any:
    """torch.compile of a model; functions marked with `uncompiled` are excluded."""
    for holder in _uncompiled:
        holder[0] = torch.compiler.disable(holder[0])
    return torch.compile(model)
