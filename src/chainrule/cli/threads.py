"""The option --threads of every verb that computes."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=1 << 10, help="Number of CPU cores to use (default: all)."),
]


def with_threads(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the option --threads, which takes effect before torch is imported, unless it has its own."""
    parameters = inspect.signature(verb, eval_str=True).parameters
    if "threads" in parameters:
        return verb

    @functools.wraps(verb)
    def call(*arguments: Any, threads: int | None = None, **named: Any) -> None:
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)
        verb(*arguments, **named)

    option = inspect.Parameter("threads", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Threads)
    every = [*parameters.values(), option]
    vars(call)["__signature__"] = inspect.Signature(every)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return call
