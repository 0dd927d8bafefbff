"""Results in rows: a list that also becomes a pandas frame, and values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from chainrule.base.html import escape, table
from chainrule.base.tables import show_value
from chainrule.errors import ConfigError

T = TypeVar("T")

SHOWN = 100
"""Results that a notebook shows."""


@runtime_checkable
class _NamedTuple(Protocol):
    """A tuple with named fields."""

    def _asdict(self) -> dict[str, Any]: ...


class Results(list[T]):
    """A list of results, one for each text or row, in order."""

    def _repr_html_(self) -> str:
        """The results as a table for notebooks, the first hundred of them."""
        rows = [row for result in self[:SHOWN] for row in _rows_of(result)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        more = escape(f"… {len(self) - SHOWN:,} more" if len(self) > SHOWN else "")
        return table(names, ([show_value(name, row.get(name)) for name in names] for row in rows)) + more

    def to_pandas(self) -> Any:
        """The results as a pandas frame.

        One row per result, indexed by its position. Where a result is itself a list, such as the best labels of a text,
        it has one row per entry, and the column `rank` counts them from 1.
        """
        rows: list[dict[str, Any]] = []
        index: list[int] = []
        for place, result in enumerate(self):
            found = _rows_of(result)
            rows += found
            index += [place] * len(found)
        return make_frame(rows, index)


def make_frame(rows: Sequence[Mapping[str, Any]], index: Iterable[Any] | None = None) -> Any:
    """A pandas frame of rows; the error without pandas states how to install it."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("to_pandas needs pandas; install it: pip install pandas") from None
    return pandas.DataFrame(list(rows), index=None if index is None else list(index))


def json_value(value: Any) -> Any:
    """A value for JSON, which has no infinity and no NaN: these become None, in nested values as well."""
    if isinstance(value, dict):
        return {name: json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows_of(result: Any) -> list[dict[str, Any]]:
    """The rows of one result: several if it is a list of records."""
    if isinstance(result, list) and result and _record(result[0]) is not None:
        return [{"rank": rank, **(_record(one) or {})} for rank, one in enumerate(result, start=1)]
    record = _record(result)
    return [{"result": result} if record is None else record]


def _record(result: Any) -> dict[str, Any] | None:
    """The fields of a record; None: it is a plain value."""
    if is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in fields(result)}
    if isinstance(result, Mapping):
        return dict(result)
    return result._asdict() if isinstance(result, _NamedTuple) else None
