"""Why: every kind of model explains a token; and Side by side: several runs aligned over characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import chainrule as cr
from chainrule.inference.alignment import align

TEXT = "abab\ncdcd"


def test_an_ngram_shows_its_backoff_path(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page(f"why?run=ngram&at=3&text={quote(TEXT)}")
    table = page.locator("[data-kind=backoff]")
    found = cr.load(runs / "ngram").why(TEXT, 3)
    expect(table.locator("tbody tr")).to_have_count(len(found.reasons[1].tried))
    product = float(table.locator("[data-product]").get_attribute("data-product") or "nan")
    assert product == pytest.approx(found.probability, rel=1e-5)
    expect(page.get_by_role("heading", name=f"n-gram: order {found.reasons[1].order} of 5 decided")).to_be_visible()
    page.locator(".token").nth(1).click()
    expect(page.locator("aside h2")).to_have_text(TEXT[1])
    expect(page).to_have_url(re.compile("at=1"))


def test_a_mixture_shows_shares_that_add_up(open_page: Callable[..., Page]) -> None:
    page = open_page(f"why?run=mixture&at=3&text={quote(TEXT)}")
    page.wait_for_selector("[data-share]")
    shares = page.locator("[data-share]").evaluate_all("all => all.map(one => Number(one.dataset.share))")
    assert sum(shares) == pytest.approx(1)
    inside = page.get_by_text("Inside ngram")
    inside.click()
    expect(page.locator("details [data-kind=backoff]")).to_be_visible()
    page.get_by_text("Inside lstm").click()
    expect(page.get_by_role("heading", name="Gates and state of lstm, layer 1")).to_be_visible()


def test_a_transformer_shows_layers_and_heads(open_page: Callable[..., Page]) -> None:
    page = open_page(f"why?run=transformer&at=5&text={quote(TEXT)}")
    heads = page.locator(".heads button")
    expect(heads).to_have_count(4)  # 2 layers × 2 heads
    before = page.locator(".cool .token").first.get_attribute("title")
    heads.nth(3).click()
    expect(heads.nth(3)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Layer", exact=True)).to_have_value("1")
    weights = page.locator(".cool .token").evaluate_all("all => all.map(one => Number(one.title))")
    assert sum(weights) == pytest.approx(1, abs=0.01)
    page.get_by_label("Layer", exact=True).select_option("0")
    page.get_by_label("Head", exact=True).select_option("0")
    assert page.locator(".cool .token").first.get_attribute("title") != before


def test_a_hybrid_shows_both_branches_and_gamma(open_page: Callable[..., Page], more_runs: Path) -> None:
    page = open_page(f"why?run=hybrid&at=5&text={quote(TEXT)}")
    branches = page.locator("[data-kind=hybrid]")
    mixed = float(branches.get_attribute("data-p") or "nan")
    assert mixed == pytest.approx(cr.load(more_runs / "hybrid").why(TEXT, 5).probability, rel=1e-4)
    expect(page.get_by_role("heading", name="γ = 0.300")).to_be_visible()


def test_a_translator_shows_what_it_read_and_both_branches(open_page: Callable[..., Page], more_runs: Path) -> None:
    page = open_page("why?run=letters&text=abc&translation=CBA&at=1")
    branches = page.locator("[data-kind=hybrid]")
    run = cr.load(more_runs / "letters")
    found = run.why("abc", "CBA", 1)
    assert float(branches.get_attribute("data-p") or "nan") == pytest.approx(found.probability, rel=1e-4)
    expect(page.get_by_role("heading", name="Attention: what the last position reads")).to_be_visible()
    page.get_by_label("Translation").fill("")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_label("Translation")).to_have_value(run.translate("abc"))
    expect(page.locator(".reasons aside h2")).to_have_text(run.tokenizer.piece(run.tokenizer.eos))


def test_side_by_side_aligns_tokenisers(open_page: Callable[..., Page], runs: Path, more_runs: Path) -> None:
    text = "abab cdcd efef\nabab"
    page = open_page(f"side?runs=ngram|words&text={quote(text)}")
    page.wait_for_selector("[data-role=words]")
    given = [cr.load(runs / "ngram").surprise(text), cr.load(more_runs / "words").surprise(text)]
    aligned = align(given)
    rows = page.locator("[data-role=words] tbody tr")
    assert rows.count() == len(aligned.words)
    for place, word in enumerate(aligned.words):
        shown = rows.nth(place).locator("td").all_text_contents()
        assert shown[:2] == [f"{bits:.2f}" for bits in word.bits]
        assert float(shown[2].replace("−", "-")) == pytest.approx(word.bits[0] - word.bits[1], abs=0.01)
    totals = page.locator("[data-total]").all_text_contents()
    assert totals == [f"{bits:.2f}" for bits in aligned.bits]
    page.get_by_role("checkbox", name="lstm").check()
    expect(page.locator("[data-total]")).to_have_count(3)
    page.get_by_label("Compare with").select_option("lstm")
    page.get_by_label("Order").select_option("sorted")
    gaps = [abs(float(one.replace("−", "-"))) for one in rows.locator("td:last-child").all_text_contents()]
    assert gaps == sorted(gaps, reverse=True)
    page.get_by_role("checkbox", name="words").uncheck()
    page.get_by_role("checkbox", name="lstm").uncheck()
    expect(page.get_by_text("Choose at least two runs.")).to_be_visible()
