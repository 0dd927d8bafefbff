"""What a model is: its formula and paper, its options, and what to try. All of it is stated in the model's own file."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined

from chainrule.registry import MODELS, TASKS


@dataclass(frozen=True)
class ModelOption:
    """One option of a model."""

    name: str
    default: Any
    description: str


@dataclass(frozen=True)
class Explanation:
    """A model as its file describes it. `str` of it is the text that `chainrule explain` prints."""

    name: str
    summary: str
    task: str
    family: str
    fitting: str
    text: str  # formula, paper and how it works
    options: tuple[ModelOption, ...]
    suggestions: tuple[str, ...]
    page: str  # of the documentation

    def __str__(self) -> str:
        width = max((len(option.name) for option in self.options), default=0)
        options = [f"  {one.name:<{width}}  {one.description} (default: {one.default})" for one in self.options]
        return "\n".join(
            [
                f"{self.name}: {self.summary}",
                f"task {self.task}, family {self.family}, fitted by {self.fitting}",
                "",
                self.text,
                "",
                "Options, set with --set model.NAME=VALUE:",
                *options,
                "",
                "What to try:",
                *(f"  {suggestion}" for suggestion in self.suggestions),
                "",
                f"Documentation: {self.page}",
            ]
        )


def explain(model: str) -> Explanation:
    """What a model is: formula, paper, options with their defaults, and what to try.

    Args:
        model: The name of a model, as `chainrule models` lists it.
    """
    entry = MODELS.get(model)
    fields = entry.make.Config.model_fields
    return Explanation(
        name=model,
        summary=inspect.cleandoc(entry.make.__doc__).partition("\n")[0],
        task=TASKS.get(entry.task).kind,
        family=entry.family,
        fitting=entry.fitting,
        text=inspect.cleandoc(sys.modules[MODELS.module_of(model)].__doc__ or ""),
        options=tuple(
            ModelOption(name, _default(field), field.description or "") for name, field in sorted(fields.items())
        ),
        suggestions=entry.make.suggestions,
        page=f"docs/models/{entry.family}.md",
    )


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=True)
    return "from the data" if value is PydanticUndefined or value is None else value
