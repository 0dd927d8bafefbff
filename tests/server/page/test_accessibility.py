"""axe-core finds no serious or critical problem in any view, light and dark, wide and narrow, English and Chinese."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from requirements import AXE, need

need("axe")

VIEWS_FILE = Path(__file__).parents[3] / "src/chainrule/server/page/views.js"
ADDRESSES = {
    "translate": "translate?run=letters&text=abcd",
    "vectors": "vectors?run=vectors&word=cat",
    "labels": "labels?run=more/classifier&text=good text",
    "runs": "runs?run=lstm",
}
"""What a view shows where its default is not enough."""

NAMES = re.findall(r'name: "(\w+)"', VIEWS_FILE.read_text(encoding="utf-8"))


def problems(page: Page) -> list[str]:
    """The serious and critical problems: rule, element, what is wrong."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", [*NAMES, "tags"])
def test_no_serious_problem(open_page: Callable[..., Page], name: str, theme: str) -> None:
    address = "labels?run=more/tagger&text=the cat sat" if name == "tags" else ADDRESSES.get(name, name)
    page = open_page(address, color_scheme=theme, locale="zh-CN" if theme == "dark" else "en-US")
    expect(page.locator("#main")).to_have_attribute("aria-busy", "false")
    assert problems(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0  # nothing is cut off on a phone


def test_a_problem_would_be_found(open_page: Callable[..., Page]) -> None:
    page = open_page("labels?run=more/classifier&text=good text")
    page.wait_for_selector("[data-role=labels]")
    page.evaluate("document.querySelector('textarea').closest('label').replaceWith(document.querySelector('textarea'))")
    assert any(one.startswith("label") for one in problems(page))
