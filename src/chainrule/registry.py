"""Names to things. A new model, objective or tokeniser is one file and one registration.

    @MODELS.register("gru", family="recurrent", task="lm")
    class Gru(LanguageModel): ...

`MODELS.get("gru").make` is then the class. Modules register when imported; a registry imports the modules of its
package when it is first asked.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chainrule.errors import unknown_name

T = TypeVar("T")

DECORATORS = ("register", "language_model")
"""Decorators that enter a class into a registry."""


@dataclass(frozen=True)
class Entry:
    """One registered thing. Which of the optional fields are given depends on the registry."""

    name: str
    make: Any  # what makes it: a class, a function, or the object itself
    family: str = ""  # models: the page of the documentation it is on
    task: str = ""  # models: what it is for; objectives: the task that prepares its data, where it is a special one
    counterpart: str | None = None  # models: the name of the same model for the other kind of data
    objective: str | None = None  # models: the only objective it is trained with; None: any that fits its task
    fitting: str = "gradients"  # models: how it is fitted, a name of training/fitting
    kind: str = ""  # tasks: as `chainrule models` lists it
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
        """The entry of a name; the error for an unknown name suggests the nearest known one.

        Only the module that registers the name is imported, if there is one.
        """
        if name not in self._entries:
            self._load_module_of(name)
        if name not in self._entries:
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

    def peek_names(self) -> list[str]:
        """All names, sorted, found in the text of the sources: in milliseconds, for help texts."""
        texts = (file.read_text(encoding="utf-8") for file in self._files())
        return sorted({name for text in texts for name in re.findall(r"\.register\(\s*\"([\w-]+)\"", text)})

    def peek(self) -> list[Entry]:
        """All entries with name, fields and summary, sorted by name, read from the sources without importing them.

        Quick enough for help texts. `make` is None, and a `summary` is the first line of the docstring unless given.
        """
        found = [entry for file in self._files() for entry in _peek_file(file)]
        return sorted(found, key=lambda entry: entry.name)

    def describe(self, name: str) -> Entry:
        """The entry of a name as `peek` gives it, from its source alone; of a module that is elsewhere, as `get` does.

        Its `make` may be None.
        """
        if name in self._entries:
            return self._entries[name]
        found = (entry for file in self._files_of(name) for entry in _peek_file(file) if entry.name == name)
        return next(found, None) or self.get(name)

    def _files(self) -> list[Path]:
        """The source files of its package, which is not imported."""
        package = sys.modules.get(self._package)
        folders = package.__path__ if package else [str(Path(__file__).parent.joinpath(*self._package.split(".")[1:]))]
        return sorted(file for folder in folders for file in Path(folder).glob("*.py"))

    def module_of(self, name: str) -> str:
        """The name of the module whose source registers a name; empty: there is none in the package."""
        return next((f"{self._package}.{file.stem}" for file in self._files_of(name)), "")

    def _files_of(self, name: str) -> Iterator[Path]:
        """The source files that register a name."""
        call = re.compile(rf"(?:{'|'.join(DECORATORS)})\(\s*\"{re.escape(name)}\"")
        return (file for file in self._files() if call.search(file.read_text(encoding="utf-8")))

    def _load_module_of(self, name: str) -> None:
        if module := self.module_of(name):
            importlib.import_module(module)

    def _load(self) -> None:
        if not self._loaded:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._loaded = True


def _peek_file(file: Path) -> Iterator[Entry]:
    """The registrations of a file: calls whose only positional argument is a name, with fields of `Entry`."""
    text = file.read_text(encoding="utf-8")
    if "register(" not in text and "@language_model(" not in text:
        return
    for node in ast.parse(text).body:
        for call in getattr(node, "decorator_list", []):
            if not isinstance(call, ast.Call) or ast.unparse(call.func).split(".")[-1] not in DECORATORS:
                continue
            fields = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            summary = (ast.get_docstring(node) or "").partition("\n")[0]  # type: ignore[arg-type]
            task = {"task": "lm"} if ast.unparse(call.func) == "language_model" else {}
            yield Entry(ast.literal_eval(call.args[0]), None, **{"summary": summary, **task, **fields})


TOKENIZERS = Registry("tokenizer", "chainrule.text.tokenizers")
ENCODERS = Registry("encoder", "chainrule.layers.encoders")
OUTPUTS = Registry("output layer", "chainrule.layers.outputs")
MODELS = Registry("model", "chainrule.models")
OBJECTIVES = Registry("objective", "chainrule.objectives")
TASKS = Registry("task", "chainrule.tasks")
FITTINGS = Registry("way of fitting", "chainrule.training.fitting")
RUNS = Registry("run", "chainrule.runs")
