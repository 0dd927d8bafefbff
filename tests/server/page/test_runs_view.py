"""Runs in a browser: the leaderboard, curves that grow while a training runs, configuration and command."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from chainrule.base.locks import lock
from chainrule.checkpoint.folder import RunFolder


@pytest.fixture
def live(runs: Path, more_runs: Path) -> Iterator[Callable[[int, int], None]]:
    """A training that seems to run in a served folder: call it to log steps."""
    folder = more_runs / "live"
    (folder / "training").mkdir(parents=True)
    for name in ("config.toml", "signature"):
        shutil.copy(runs / "lstm" / name, folder / name)

    def log(begin: int, end: int) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            for step in range(begin, end):
                file.write(
                    json.dumps({"step": step, "tokens": 10 * step, "seconds": step / 10, "loss": 4 / step}) + "\n"
                )

    with ExitStack() as held:
        held.enter_context(lock(folder / "training" / "lock", folder))
        log(1, 11)
        yield log
    shutil.rmtree(folder)


def names(page: Page) -> list[str]:
    return [row.get_attribute("data-run") or "" for row in page.locator("[data-role=leaderboard] tbody tr").all()]


def test_the_leaderboard_is_sorted_by_clicks_and_keys(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page("runs")
    expect(page.locator("[data-run=lstm]")).to_contain_text("lstm")
    assert names(page)[0] in ("ngram", "words")  # the only ones whose bits are known
    page.locator("[data-sort=parameters]").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("parameters")
    sizes = [json.loads((runs / name / "result.json").read_text())["parameters"] for name in ("lstm", "transformer")]
    order = [name for name in names(page) if name in ("lstm", "transformer")]
    assert order == (["lstm", "transformer"] if sizes[0] < sizes[1] else ["transformer", "lstm"])
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("parameters")
    assert [name for name in names(page) if name in ("lstm", "transformer")] == order[::-1]
    page.reload()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("parameters")
    page.locator("[data-sort=name]").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Run")
    assert names(page) == sorted(names(page), key=str.lower)


def test_a_redrawn_table_keeps_the_focus(open_page: Callable[..., Page], live: Callable[[int, int], None]) -> None:
    page = open_page("runs")
    heading = page.locator("[data-sort=parameters]")
    expect(page.locator("[data-role=curves] svg.chart")).to_be_visible()
    heading.focus()
    heading.evaluate("(heading) => { heading.dataset.old = 'yes'; }")
    live(11, 21)  # the next look at the training draws the table anew
    expect(page.locator("[data-sort=parameters][data-old]")).to_have_count(0, timeout=30_000)
    expect(heading).to_be_focused()


def test_a_run_is_measured_by_a_click(open_page: Callable[..., Page]) -> None:
    page = open_page("runs?sort=name")
    row = page.locator("[data-run=lstm]")
    before = row.inner_text()
    row.get_by_role("button", name="measure").click()
    expect(row.get_by_role("button", name="measure")).to_have_count(0)
    assert row.inner_text() != before


def test_figures_of_test_data_are_marked_and_counted_models_have_no_steps(
    open_page: Callable[..., Page], runs: Path
) -> None:
    folder = RunFolder(runs / "transformer")
    folder.write_figures({"bits_per_byte": 2.25, "data": ["test.txt"]}, "test.json")
    try:
        page = open_page("runs")
        cell = page.locator("[data-run=transformer] td").first
        expect(cell).to_have_text(re.compile(r"^2\.250\s*test$"))
        expect(cell).to_have_attribute("title", "Measured by compare on test.txt")
        expect(page.locator("[data-run=transformer]").get_by_role("button", name="measure")).to_have_count(0)
        expect(page.locator("[data-run=ngram] td").last).to_have_text("–")
    finally:
        (folder.path / "test.json").unlink()


def test_configuration_and_command(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page("runs", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="lstm", exact=True).click()
    details = page.locator("[data-role=details]")
    expect(details.locator(".config")).to_have_text((runs / "lstm" / "config.toml").read_text())
    command = details.locator(".command pre")
    expect(command).to_contain_text("chainrule train")
    expect(command).to_contain_text("--model lstm")
    details.get_by_role("button", name="Copy").click()
    expect(details.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == command.inner_text()
    page.reload()
    expect(page.locator("[data-role=details] h2")).to_contain_text("lstm")


def test_curves_grow_while_a_training_runs(open_page: Callable[..., Page], live: Callable[[int, int], None]) -> None:
    page = open_page("runs")
    expect(page.locator("[data-run=live] .status")).to_have_text("training")
    curve = page.locator("[data-series^='live'][data-points='10']")
    expect(curve).to_have_count(1)
    live(11, 31)
    expect(page.locator("[data-series^='live'][data-points='30']")).to_have_count(1)
    live(31, 20_000)
    expect(page.locator("[data-series^='live']")).to_have_attribute("data-points", re.compile(r"\d{4}"))


def test_the_chart_is_read_by_pointer_and_keys(
    open_page: Callable[..., Page], live: Callable[[int, int], None]
) -> None:
    page = open_page("runs")
    chart = page.locator(".chart")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".readout")).to_contain_text("live")
    chart.hover(position={"x": 300, "y": 100})
    expect(page.locator(".readout")).to_contain_text("steps")
    page.get_by_label("Horizontal axis").select_option("seconds")
    expect(page.locator(".chart .title").first).to_have_text("seconds")
    page.get_by_label("logarithmic").check()
    page.get_by_label("Vertical axis").select_option("lr")
    expect(page.get_by_text("Nothing was logged yet")).to_be_visible()
    page.get_by_label("Vertical axis").select_option("loss")
    page.locator(".curves-of input[value=live]").uncheck()
    expect(page.locator("[data-series^='live']")).to_have_count(0)
    page.reload()
    expect(page.locator(".curves-of input[value=live]")).not_to_be_checked()
