"""Every parameter of the public surface is documented, and no documented parameter is missing from its signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
import chainrule.kenlm
import chainrule.ray
import chainrule.sklearn
import chainrule.spark
from chainrule.registry import RUNS

DOCS = Path(__file__).parent.parent / "docs"


def public_classes() -> Iterator[type[Any]]:
    """Run classes, the public classes of the package, and those of the two interfaces of other libraries."""
    yield from (entry.make for entry in RUNS.entries())
    yield from filter(inspect.isclass, (getattr(cr, name) for name in cr.__all__))
    yield chainrule.ray.Verb
    for module in (chainrule.sklearn, chainrule.kenlm):
        classes = (value for name, value in vars(module).items() if inspect.isclass(value) and name[0] != "_")
        yield from (one for one in classes if one.__module__ in (module.__name__, "chainrule.interop.kenlm"))


def callables() -> dict[str, tuple[Callable[..., Any], str]]:
    """Every public function, method and written constructor with the text that documents its parameters."""
    functions = filter(inspect.isfunction, (getattr(cr, name) for name in cr.__all__))
    found: dict[str, tuple[Callable[..., Any], str]] = {one.__name__: (one, one.__doc__ or "") for one in functions}
    for module in (chainrule.spark, chainrule.ray):
        for one in filter(inspect.isfunction, vars(module).values()):
            found[f"{module.__name__}.{one.__name__}"] = (one, one.__doc__ or "")
    for one in public_classes():
        if "__init__" in vars(one) and not is_dataclass(one) and one is not cr.Run:
            found[one.__name__] = (one, one.__doc__ or "")
        for name, method in inspect.getmembers(one, lambda part: inspect.isfunction(part) or inspect.ismethod(part)):
            if not name.startswith("_") and method.__module__.startswith("chainrule."):
                found[method.__qualname__] = (method, inspect.getdoc(method) or "")
    return found


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names in a signature; of **options the name is that of the dictionary."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def documented(text: str) -> list[str]:
    """The names in the section `Args:` of a docstring."""
    section = inspect.cleandoc(text).partition("Args:\n")[2]
    lines = section.split("\n\n")[0].splitlines()
    return [found[1] for line in lines if (found := re.match(r"    \*{0,2}(\w+): \S", line))]


CALLABLES = callables()


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_every_parameter_is_documented(name: str) -> None:
    function, text = CALLABLES[name]
    assert text, f"{name} has no docstring"
    assert documented(text) == parameters(function)


def test_the_walk_finds_undocumented_parameters() -> None:
    def undocumented(first: int, second: int) -> None:
        """Something.

        Args:
            first: A number.

        Returns:
            second: not a parameter.
        """

    assert documented(undocumented.__doc__ or "") == ["first"] != parameters(undocumented)
    assert {"train", "load", "TranslatingRun.translate", "GeneratingRun.generate", "TextClassifier", "Model.score"} <= {
        *CALLABLES
    }


def test_the_api_page_lists_what_is_public() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE))
    public = [getattr(cr, name) for name in cr.__all__ if name not in ("__version__", "ChainruleError")]
    assert {f"{one.__module__}.{one.__qualname__}" for one in public} <= shown
    assert {f"{entry.make.__module__}.{entry.make.__qualname__}" for entry in RUNS.entries()} <= shown


def test_help_names_every_public_function() -> None:
    assert cr.__doc__
    for name in cr.__all__:
        if inspect.isfunction(getattr(cr, name)):
            assert re.search(rf"\b{name}\b", cr.__doc__), name
