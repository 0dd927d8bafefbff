"""Modules that are imported when they are first needed, so that what needs none of them starts quickly.

from chainrule.base.lazy import torch     imported when one of its names is first used; n-grams never use it
LazyKernels("chainrule.….kernels", …)     compiled functions, used once plain Python would take longer
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar


class LazyModule:
    """A module that is imported when one of its names is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value


class LazyKernels:
    """A module of compiled functions which plain Python replaces, with the same results, until its budget is spent.

    Importing numba and loading compiled functions takes as long as a few thousand words in plain Python, and most
    processes that a user starts for a few lines need no more.

    Args:
        name: Name of the module.
        budget: Amount of work, in any unit, that plain Python does in this process.
    """

    _all: ClassVar[list[LazyKernels]] = []

    def __init__(self, name: str, budget: int) -> None:
        self._name, self._left = name, budget
        self._module: Any = None
        self._all.append(self)

    def after(self, work: int) -> Any:
        """The module, or None if plain Python is to do this work."""
        if self._module is None:
            self._left -= work
            if self._left < 0:
                self.load()
        return self._module

    def load(self) -> None:
        """Import the module now."""
        self._module = import_module(self._name)

    @classmethod
    def load_all(cls) -> None:
        """Import the modules of all instances: what takes requests for a long time does not wait for them then."""
        for one in cls._all:
            one.load()


if TYPE_CHECKING:
    import torch as torch
else:
    torch = LazyModule("torch")
