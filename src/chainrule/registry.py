"""Names to things. A new model, objective or tokeniser is one file and one registration.

    @MODELS.register("gru", family="recurrent", task="lm")
    class Gru(LanguageModel): ...

`MODELS.get("gru").make` is then the class. Modules register when imported; `load` imports a package's modules.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chainrule.errors import unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One registered thing: what makes it, and what is said of it."""

    name: str
    make: Any
    about: dict[str, str] = field(default_factory=dict)


class Registry:
    """A table of names for one kind of thing, filled by importing the package that holds them."""

    def __init__(self, what: str, package: str) -> None:
        self.what = what
        self._package = package
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def register(self, name: str, **about: str) -> Callable[[T], T]:
        def keep(make: T) -> T:
            self._entries[name] = Entry(name, make, about)
            return make

        return keep

    def get(self, name: str) -> Entry:
        self._load()
        if name not in self._entries:
            raise unknown_name(self.what, name, self._entries)
        return self._entries[name]

    def names(self) -> list[str]:
        self._load()
        return sorted(self._entries)

    def entries(self) -> list[Entry]:
        return [self.get(name) for name in self.names()]

    def _load(self) -> None:
        if not self._loaded:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._loaded = True


MODELS = Registry("model", "chainrule.models")
OUTPUTS = Registry("output layer", "chainrule.layers.outputs")
OBJECTIVES = Registry("objective", "chainrule.objectives")
TOKENIZERS = Registry("tokenizer", "chainrule.text.tokenizers")
