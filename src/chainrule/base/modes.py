"""Training and evaluation mode of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from chainrule.base.lazy import torch
from chainrule.types import Model

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Disable gradients, and dropout in models that have it; restore the previous mode afterwards."""
    if isinstance(model, Model) and model.arrays is not None:  # it has neither
        yield
        return
    if not isinstance(model, torch.nn.Module) or not _any_trains(model):
        with torch.inference_mode():  # setting the mode again would take as long as scoring a short line
            yield
        return
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def _any_trains(module: torch.nn.Module) -> bool:
    """Whether a module or a part of it is in training mode; `modules` would take ten times as long."""
    left: list[torch.nn.Module | None] = [module]
    while left:
        if (part := left.pop()) is not None:
            if part.training:
                return True
            left += part._modules.values()
    return False


def without_gradients(function: F) -> F:
    """`torch.inference_mode()` as a decorator of functions and generators; torch is imported with the first call."""
    decorated: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not decorated:
            decorated.append(torch.inference_mode()(function))
        return decorated[0](*arguments, **named)

    return call  # type: ignore[return-value]
