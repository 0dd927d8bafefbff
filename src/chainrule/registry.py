"""Names to things. A new model, objective or tokeniser is one file and one registration.

    @MODELS.register("gru", family="recurrent", task="lm")
    class Gru(LanguageModel): ...

`MODELS.get("gru").make` is then the class. Modules register when imported; a registry imports the modules of its
package when it is first asked.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from chainrule.errors import unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One registered thing. Which of the optional fields are given depends on the registry."""

    name: str
    make: Any  # what makes it: a class, a function, or the object itself
    family: str = ""  # models: the page of the documentation it is on
    task: str = ""  # models: what it is for; objectives: the task that prepares its data, where it is a special one
    counterpart: str | None = None  # models: the name of the same model for the other kind of data
    objective: str | None = None  # models: the only objective it is trained with; None: any that fits its task
    summary: str = ""  # tokenisers: one line for people


class Registry:
    """A table of names for one kind of thing, filled by importing the package that holds them."""

    def __init__(self, what: str, package: str) -> None:
        self.what = what
        self._package = package
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def register(self, name: str, **fields: Any) -> Callable[[T], T]:
        """Decorator that enters what it decorates under a name; `fields` are those of `Entry`."""

        def enter(make: T) -> T:
            self._entries[name] = Entry(name, make, **fields)
            return make

        return enter

    def get(self, name: str) -> Entry:
        """The entry of a name; the error for an unknown name suggests the nearest known one."""
        self._load()
        if name not in self._entries:
            raise unknown_name(self.what, name, self._entries)
        return self._entries[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def entries(self) -> list[Entry]:
        """All entries, sorted by name."""
        return [self.get(name) for name in self.names()]

    def _load(self) -> None:
        if not self._loaded:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._loaded = True


TOKENIZERS = Registry("tokenizer", "chainrule.text.tokenizers")
ENCODERS = Registry("encoder", "chainrule.layers.encoders")
OUTPUTS = Registry("output layer", "chainrule.layers.outputs")
MODELS = Registry("model", "chainrule.models")
OBJECTIVES = Registry("objective", "chainrule.objectives")
TASKS = Registry("task", "chainrule.tasks")
FITTINGS = Registry("way of fitting", "chainrule.training.fitting")
RUNS = Registry("run", "chainrule.runs")
