"""The page of a report in a real browser, opened from the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report_desk import SCRIPT, Desk
from requirements import CHROMIUM, need

need("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    desk.report.save(folder / "plain.html")
    desk.report.save(folder / "interactive.html", interactive=True)
    return {name: folder / f"{name}.html" for name in ("plain", "interactive")}


class OpenedPage:
    """A page with all that it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.goto(path.as_uri())

    def column(self, place: int, table: str = "#leaderboard table") -> list[str]:
        return self.page.locator(table).first.locator(f"tbody td:nth-child({place})").all_inner_texts()


@pytest.mark.parametrize("name", ["plain", "interactive"])
def test_it_asks_for_nothing_and_complains_of_nothing(browser: Any, files: dict[str, Path], name: str) -> None:
    opened = OpenedPage(browser, files[name])
    opened.page.wait_for_selector("figure svg")
    opened.page.wait_for_timeout(300)
    assert opened.requests == [files[name].as_uri()]
    assert opened.complaints == []
    assert opened.page.locator("img, iframe, object").count() == 0
    assert SCRIPT.split("<img")[0] in opened.page.locator("#worst, #sample").first.inner_text()


def test_interactive_charts_are_drawn_by_their_library(browser: Any, files: dict[str, Path]) -> None:
    opened = OpenedPage(browser, files["interactive"])
    opened.page.wait_for_selector("figure .vega-embed svg, figure .drawing.vega-embed svg")
    point = opened.page.locator("#curves figure").first.locator(".mark-symbol path").first
    point.hover()
    opened.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "validation loss" in opened.page.locator("#vg-tooltip-element").inner_text()
    assert opened.complaints == []


def test_tables_are_sorted_and_filtered(browser: Any, files: dict[str, Path]) -> None:
    opened = OpenedPage(browser, files["plain"])
    heading = opened.page.locator("#leaderboard table").first.locator("th", has_text="bits per byte")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    values = [float(text) for text in opened.column(3)]
    assert values == sorted(values)
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(text) for text in opened.column(3)] == sorted(values, reverse=True)
    field = opened.page.locator("#sample input[type=search]")
    rows = opened.page.locator("#sample tbody tr")
    field.fill("all")
    shown = [row for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < rows.count()


def test_series_can_be_left_out_and_points_have_titles(browser: Any, files: dict[str, Path]) -> None:
    opened = OpenedPage(browser, files["plain"])
    figure = opened.page.locator("#bits figure").first
    marks = figure.locator('[aria-label*="series: lstm"]')
    assert marks.first.is_visible()
    assert "bits per word" in marks.first.locator("title").text_content()
    figure.get_by_label("lstm", exact=True).uncheck()
    assert not any(mark.is_visible() for mark in marks.all())
    assert figure.locator('[aria-label*="series: ngram"]').first.is_visible()


def test_it_reads_without_scripts_and_on_a_phone(browser: Any, files: dict[str, Path]) -> None:
    opened = OpenedPage(browser, files["plain"], java_script_enabled=False, viewport={"width": 380, "height": 700})
    assert opened.page.locator("figure svg").count() > 5
    assert opened.page.locator("section").count() == 8
    wide = opened.page.locator("main").bounding_box()
    assert wide is not None
    assert wide["x"] + wide["width"] <= 380


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_charts_can_be_read_on_both_grounds(browser: Any, files: dict[str, Path], scheme: str) -> None:
    opened = OpenedPage(browser, files["plain"], color_scheme=scheme)

    def brightness(selector: str, name: str) -> float:
        colour = opened.page.locator(selector).first.evaluate(f"one => getComputedStyle(one)['{name}']")
        return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3

    ground, ink = brightness("body", "backgroundColor"), brightness("figure svg .role-axis-label text", "fill")
    assert abs(ground - ink) > 150


def test_it_prints_without_cutting_tables(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    """On paper nothing scrolls: no table is wider than the page, and charts and rows are not split."""
    opened = OpenedPage(browser, files["plain"], viewport={"width": 690, "height": 1000})  # A4 within its margins
    opened.page.emulate_media(media="print")
    too_wide = opened.page.evaluate(
        "[...document.querySelectorAll('table, svg')].filter(one => one.checkVisibility())"
        ".filter(one => one.getBoundingClientRect().right > 691).map(one => one.textContent.slice(0, 60))"
    )
    assert too_wide == []
    assert opened.page.locator("nav").is_hidden()
    opened.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
