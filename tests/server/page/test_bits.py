"""Text in bits: colours, details by mouse and keys, and a sum that eval and compress confirm."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import chainrule as cr

TEXT = "abab abab\ncdcd!"


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture", "words"])
def test_the_bits_are_those_of_the_run_and_add_up(
    open_page: Callable[..., Page], runs: Path, more_runs: Path, tmp_path: Path, name: str
) -> None:
    run = cr.load((more_runs if name == "words" else runs) / name)
    page = open_page(f"bits?run={name}&text={quote(TEXT)}")
    page.wait_for_selector("[data-bytes]")
    surprise = run.surprise(TEXT)
    shown = float(page.locator(".sum").get_attribute("data-bits") or "nan")
    assert shown == pytest.approx(surprise.bits, rel=1e-5)
    assert f"{surprise.bits:.2f} bits for 15 bytes" in page.locator(".sum").inner_text()
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    evaluated = run.evaluate(file)
    said = float(page.locator(".check [data-bits]").get_attribute("data-bits") or "nan")
    assert said == pytest.approx(evaluated.bits_per_byte * evaluated.bytes)
    assert said == pytest.approx(shown, rel=1e-5)
    compressed = run.compress(file, tmp_path / "archive")
    assert page.locator("[data-bytes]").get_attribute("data-bytes") == str(compressed.compressed_bytes)
    coded = int(page.locator("[data-coded]").get_attribute("data-coded") or "0")
    assert shown <= 8 * coded <= shown + 8 * 10  # each of the two codes ends with up to four bytes more
    assert page.locator(".tokens").inner_text().replace("↵", "") == TEXT


def test_pointing_tapping_and_arrow_keys_show_the_details(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page(f"bits?run=ngram&text={quote(TEXT)}")
    tokens, side = page.locator(".token"), page.locator("aside")
    tokens.nth(2).hover()
    details = cr.load(runs / "ngram").surprise(TEXT).tokens
    for place in (2, 3, 4):
        expect(tokens.nth(place)).to_have_attribute("aria-selected", "true")
        expect(side.locator("dd").first).to_have_text(f"{details[place].bits:.2f}")
        expect(side).to_contain_text("n-gram order")
        assert side.locator(".bars li").count() == 8
        if place == 2:
            tokens.nth(3).click()
        else:
            tokens.nth(3).press("ArrowRight")
    expect(page).to_have_url(re.compile("at=3"))
    tokens.nth(4).press("Home")
    expect(tokens.nth(0)).to_be_focused()
    tokens.nth(0).press("ArrowDown")
    expect(tokens.nth(10)).to_be_focused()  # the first of the second line
    tokens.nth(0).press("End")
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()


def test_markup_stays_text(open_page: Callable[..., Page]) -> None:
    text = "<script>document.title='x'</script><img src=x onerror=alert(1)><b>bold</b>"
    page = open_page(f"bits?run=ngram&text={quote(text)}")
    page.wait_for_selector(".token")
    assert page.locator(".tokens").inner_text() == text
    assert page.locator("main script, main img, main b").count() == 0
    assert page.title() == "Text in bits · chainrule"


def test_characters_beyond_the_basic_plane_keep_their_places(open_page: Callable[..., Page]) -> None:
    text = "a😀b 中文 ab"
    page = open_page(f"bits?run=ngram&text={quote(text)}")
    page.wait_for_selector(".token")
    assert page.locator(".tokens").inner_text() == text


def test_a_new_text_goes_into_the_address_and_back_restores_the_view(open_page: Callable[..., Page]) -> None:
    page = open_page("bits?run=ngram&text=abab")
    page.wait_for_selector(".token")
    page.get_by_label("Text").fill("cdcdcd")
    page.get_by_label("Text").press("Control+Enter")
    expect(page.locator(".tokens")).to_have_text("cdcdcd")
    expect(page).to_have_url(re.compile("text=cdcdcd"))
    page.get_by_role("link", name="Side by side").click()
    expect(page.locator("h1")).to_have_text("Side by side")
    page.go_back()
    expect(page.locator(".tokens")).to_have_text("cdcdcd")


def test_another_run_colours_the_same_text(open_page: Callable[..., Page]) -> None:
    page = open_page("bits?run=ngram&text=abab")
    before = page.locator(".sum").inner_text()
    page.get_by_label("Run").select_option("lstm")
    expect(page.locator(".sum")).not_to_have_text(before)
    expect(page).to_have_url(re.compile("run=lstm"))


def test_an_error_is_shown_and_goes_with_the_next_text(open_page: Callable[..., Page]) -> None:
    page = open_page("bits?run=ngram&text=ab", expected=["400 (Bad Request)"])
    page.wait_for_selector(".token")
    page.get_by_label("Text").fill("a" * 40_000)
    page.get_by_role("button", name="Show").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("text is 40000; this server allows at most 32768")
    page.get_by_label("Text").fill("abcd")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".tokens")).to_have_text("abcd")
    expect(alert).to_be_empty()


def test_a_phone_needs_no_sideways_scrolling(open_page: Callable[..., Page]) -> None:
    for view in ("bits", "next", "why", "side"):
        page = open_page(f"{view}?text={quote(TEXT)}", viewport={"width": 360, "height": 740})
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
