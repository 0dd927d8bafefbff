"""The base class of all results: exact values for machines, text for people, and the signature of a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from chainrule.base.html import table
from chainrule.base.results import json_value, make_frame
from chainrule.base.tables import show_fields, show_value


@dataclass(frozen=True)
class Measurement:
    """A record of measured values. A subclass adds fields, whose names are the JSON keys, in order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the exact values of all fields for JSON, which has no infinity and no NaN: these become None."""
        return {name: json_value(value) for name, value in asdict(self).items()}

    @property
    def caution(self) -> str:
        """What a reader of the figures must know, printed with them; empty: nothing beyond the protocol."""
        return ""

    def figures(self) -> dict[str, Any]:
        """Return the values that `show` prints: all but the protocol and nested records; intervals as text."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "protocol"}
        return {name: _interval(value) for name, value in values.items() if not isinstance(value, dict | list)}

    def show(self) -> str:
        """Return the figures as text for people."""
        return show_fields(self.figures())

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures as a table: one row with the fields, or what a subclass has rows for, such as labels."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [{name: value for name, value in values.items() if not isinstance(value, dict | list)}]

    def _repr_html_(self) -> str:
        """Return the figures as a table for notebooks."""
        rows = [(name.replace("_", " "), show_value(name, value)) for name, value in self.figures().items()]
        return table(("measure", "value"), rows)

    def to_pandas(self) -> Any:
        """Return `rows` as a pandas frame."""
        return make_frame(self.rows())


def _interval(value: Any) -> Any:
    return f"{value[0]:.2f} to {value[1]:.2f}" if isinstance(value, tuple) else value


def format_signature(fields: Mapping[str, object]) -> str:
    """What a figure was measured with, in one line that ends with the version: equal ones are comparable."""
    return "|".join(f"{name}:{value}" for name, value in {**fields, "chainrule": package_version()}.items())


def package_version() -> str:
    """Return the version of this package, or "source" if it is not installed."""
    try:
        return version("chainrule")
    except PackageNotFoundError:
        return "source"
