"""Live options: those on which no weight depends, so that a trained model can be given other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, JsonValue


@dataclass(frozen=True)
class LiveOption:
    """A live option, and how good values of it are searched: among `choices`, or between `low` and `high`."""

    name: str
    choices: tuple[Any, ...] = ()
    low: float | None = None  # with `high`: between them the loss has one minimum
    high: float | None = None
    where: Mapping[str, Sequence[Any]] | None = None  # values of other options for which this one has an effect
    fitted: bool = False  # found by a method of its own instead of a search

    @property
    def searchable(self) -> bool:
        """Whether a search or fit is declared; other options can only be set."""
        return bool(self.choices) or self.low is not None or self.fitted

    def applies(self, config: BaseModel | Mapping[str, Any]) -> bool:
        """Whether the option has an effect in a configuration; an option that it lacks prevents nothing."""
        values = config.model_dump() if isinstance(config, BaseModel) else config
        return all(values[name] in allowed for name, allowed in (self.where or {}).items() if name in values)


def live(
    *,
    choices: Sequence[Any] = (),
    low: float | None = None,
    high: float | None = None,
    where: Mapping[str, Sequence[Any]] | None = None,
    fitted: bool = False,
) -> dict[str, JsonValue]:
    """`json_schema_extra` of a live option; the arguments are those of `LiveOption`."""
    conditions: dict[str, JsonValue] = {name: list(values) for name, values in (where or {}).items()}
    return {
        "live": True,
        "choices": list(choices),
        "low": low,
        "high": high,
        "where": conditions,
        "fitted": fitted,
    }


def live_options(config: type[BaseModel]) -> list[LiveOption]:
    """The live options that a configuration declares, in their order."""
    found = []
    for name, field in config.model_fields.items():
        declared: Any = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if declared.get("live"):
            choices, where = tuple(declared["choices"]), declared["where"]
            found.append(LiveOption(name, choices, declared["low"], declared["high"], where, declared["fitted"]))
    return found
