"""Charts: what they contain, that drawing is repeatable, and what happens without the libraries."""

from __future__ import annotations

import re
import sys

import pytest

from chainrule.errors import ConfigError
from chainrule.reports.charts.curves import CurvePoint, curves, level, thin
from chainrule.reports.charts.library import to_svg
from chainrule.reports.charts.token_bits import TokenBitsRow, token_bits
from chainrule.reports.charts.tradeoff import SIDES, TradeoffPoint, pareto, tradeoff

POINTS = [TradeoffPoint("a", "x", 1.0, 5.0), TradeoffPoint("b", "", 2.0, 6.0), TradeoffPoint("c", "", 3.0, 4.0)]


def test_the_front_has_what_no_other_beats() -> None:
    assert [point.series for point in pareto(POINTS, lower_is_better=False)] == ["a", "b"]
    assert [point.series for point in pareto(POINTS, lower_is_better=True)] == ["a", "c"]
    for point in POINTS:
        beaten = any(other.x <= point.x and other.y >= point.y and other != point for other in POINTS)
        assert (point in pareto(POINTS, lower_is_better=False)) != beaten


def test_the_same_points_give_the_same_bytes_and_texts_are_escaped() -> None:
    points = [*POINTS, TradeoffPoint("</script><img onerror=x>", "", 0.5, 9.0)]
    first, second = (to_svg(tradeoff(points, x_title="ms", y_title="BLEU", lower_is_better=False)) for _ in range(2))
    assert first == second
    assert "<img" not in first
    assert "&lt;img" in first


def test_labels_do_not_cover_one_another() -> None:
    close = [TradeoffPoint("s", f"a long label {place}", 1.0 + place / 1000, 5 + place / 1000) for place in range(5)]
    spec = tradeoff([*close, *POINTS], x_title="x", y_title="y", lower_is_better=False)
    rows = next(layer["data"]["values"] for layer in spec["layer"] if "left" in layer["data"]["values"][0])
    assert sum(bool(row["left"] or row["right"]) for row in rows if row["series"] == "s") < 5


def test_labels_avoid_the_front() -> None:
    """The label of the point before a high step would cross it on the right, so it is elsewhere or left out."""
    points = [TradeoffPoint("a", "a very long label of this point", 1.0, 1.0), TradeoffPoint("b", "", 1.3, 9.0)]
    points.append(TradeoffPoint("c", "", 9.0, 9.5))
    spec = tradeoff(points, x_title="x", y_title="y", lower_is_better=False)
    rows = next(layer["data"]["values"] for layer in spec["layer"] if "left" in layer["data"]["values"][0])
    assert not rows[0]["right"]
    assert "".join(rows[1][side] for side in SIDES) == "b"


def test_token_bits_have_a_cell_each_and_a_sum() -> None:
    drawn = to_svg(
        token_bits([TokenBitsRow("<m>", ["a", "<b>"], [1.25, 3.0]), TokenBitsRow("n", ["a", "<b>"], [0, 9])])
    )
    assert re.findall(r">([\d.]+)</text>", drawn) == ["1.3", "3.0", "0.0", "9.0", "4.3", "9.0"]
    assert "&lt;b&gt;" in drawn


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    points = [CurvePoint("a", step, 1 / step) for step in range(1, 10_001)]
    kept = thin(points)
    assert len(kept) == 400
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert [point.x for point in level("n", 2.0, points)] == [1, 10_000]
    assert len(to_svg(curves(points, x_title="steps", y_title="loss"))) < 60_000


def test_without_the_libraries_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(
        ConfigError, match=r'charts need altair, which is not installed: pip install "chainrule\[report\]"'
    ):
        curves([CurvePoint("a", 1, 1)], x_title="x", y_title="y")
