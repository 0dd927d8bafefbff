"""Results as JSON values and as text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from chainrule.base.tables import show_fields, show_table
from chainrule.evaluation.measurement import Measurement, format_signature, package_version


@dataclass(frozen=True)
class Part:
    share: float


@dataclass(frozen=True)
class Example(Measurement):
    token_count: int
    loss: float
    bound: float
    nothing: float | None
    interval: tuple[float, float]
    parts: list[Part]
    by_name: dict[str, Part]
    signature: str
    protocol: str


EXAMPLE = Example(
    12345, 0.123456, math.inf, math.nan, (1.0, 2.456), [Part(math.nan)], {"a": Part(0.5)}, "data:x", "in words"
)


def test_exact_values_are_json_and_keep_their_order() -> None:
    values = EXAMPLE.to_dict()
    assert values == {
        "token_count": 12345,
        "loss": 0.123456,
        "bound": None,
        "nothing": None,
        "interval": (1.0, 2.456),
        "parts": [{"share": None}],
        "by_name": {"a": {"share": 0.5}},
        "signature": "data:x",
        "protocol": "in words",
    }
    assert list(json.loads(json.dumps(values, allow_nan=False))) == list(values)


def test_figures_are_shown_without_protocol_and_nested_records() -> None:
    assert EXAMPLE.show() == (
        "token count  12,345\n"
        "loss         0.1235\n"
        "bound        inf\n"
        "nothing      none\n"
        "interval     1.00 to 2.46\n"
        "signature    data:x"
    )


def test_fields_and_tables_are_aligned() -> None:
    assert show_fields({"a": None, "long_name": 1.0, "b c": "text"}) == (
        "a          none\nlong name  1.0000\nb c        text"
    )
    assert show_table([["name", "n"], ["a", "10"], ["", "1"]]) == "name   n\na     10\n       1"


def test_signatures_end_with_the_version() -> None:
    assert format_signature({"data": "x", "tokens": 3}) == f"data:x|tokens:3|chainrule:{package_version()}"
