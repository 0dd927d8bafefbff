"""Translate in a browser: n-best, attention, the beam with pruned branches, another word, modes with their passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import chainrule as cr
from chainrule.runs.translator import TranslatorRun

ADDRESS = "translate?run=letters&text=abcd"


@pytest.fixture(scope="module")
def run(more_runs: Path) -> TranslatorRun:
    run = cr.load(more_runs / "letters")
    assert isinstance(run, TranslatorRun)
    return run


def value(page: Page, name: str) -> str:
    """A value of the address."""
    query = urlsplit(page.url).fragment.partition("?")[2]
    return parse_qs(query).get(name, [""])[0]


def test_the_best_translations_with_their_scores(open_page: Callable[..., Page], run: TranslatorRun) -> None:
    page = open_page(ADDRESS)
    rows = page.locator("[data-role=n-best] tbody tr")
    expected = next(run.translate_lines("abcd", num_return_sequences=5))
    expect(rows).to_have_count(len(expected))
    for place, one in enumerate(expected):
        expect(rows.nth(place)).to_contain_text(one.text)
        expect(rows.nth(place)).to_contain_text(f"{one.score:.4f}")
    expect(page.locator("[data-role=summary]")).to_contain_text(f"{expected[0].passes} passes of the model")
    page.get_by_label("Beams").select_option("2")
    expect(rows).to_have_count(2)
    assert value(page, "beams") == "2"
    page.get_by_label("Text to translate").fill("ba")
    page.get_by_label("Text to translate").press("Control+Enter")
    expect(rows.first).to_contain_text(run.translate("ba", num_beams=2))


def test_the_attention_matrix(open_page: Callable[..., Page], run: TranslatorRun) -> None:
    page = open_page(ADDRESS)
    matrix = page.locator("[data-role=attention] table")
    attention = next(run.translate_lines("abcd", attention=True))[0].attention
    assert attention is not None
    expect(matrix.locator("tbody tr")).to_have_count(len(attention.target))
    cells = matrix.locator("td[data-row]")
    expect(cells).to_have_count(len(attention.target) * len(attention.source))
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    told = page.locator("[data-role=weight]")
    expect(told).to_contain_text(f"{100 * attention.weights[1][1]:.1f}%")
    cells.nth(2).hover()
    expect(told).to_contain_text(f"{100 * attention.weights[0][2]:.1f}%")


def test_the_beam_is_a_tree_with_pruned_branches(open_page: Callable[..., Page], run: TranslatorRun) -> None:
    page = open_page(ADDRESS)
    tree = next(run.translate_lines("abcd", trace=True))[0].trace
    assert tree is not None
    nodes = page.locator(".beam-tree [role=option]")
    expect(nodes).to_have_count(len(tree.nodes))
    fates = [node.fate for node in tree.nodes]
    expect(page.locator(".beam-tree .outranked")).to_have_count(fates.count("outranked"))
    expect(page.locator(".beam-tree .finished")).to_have_count(fates.count("finished"))
    pruned = next(place for place, fate in enumerate(fates) if fate == "outranked")
    page.locator(f".beam-tree [data-index='{pruned}']").click()
    details = page.locator("[data-role=node]")
    expect(details).to_contain_text("5 candidates that do not end were more probable")
    expect(details).to_contain_text(f"{tree.nodes[pruned].score:.4f}")
    page.locator(".beam-tree [data-index='0']").focus()
    page.keyboard.press("ArrowRight")
    child = next(place for place, node in enumerate(tree.nodes) if node.parent == 0)
    expect(page.locator(f".beam-tree [data-index='{child}']")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".beam-tree [data-index='0']")).to_be_focused()
    page.get_by_label("show pruned branches").uncheck()
    expect(nodes).to_have_count(sum(fate in ("kept", "finished") for fate in fates))


def test_another_word_is_chosen_and_the_rest_is_translated_anew(
    open_page: Callable[..., Page], run: TranslatorRun
) -> None:
    page = open_page(ADDRESS)
    best = next(run.translate_lines("abcd"))[0]
    choices = run.choices("abcd", best.target)
    line = page.locator("[data-role=translation] button")
    expect(line).to_have_count(len(choices))
    line.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    offered = page.locator("[data-role=choices] button")
    expect(offered).to_have_count(min(10, len(choices[1].choices)))
    known = (best.target[1], run.tokenizer.eos)
    place, other = next((k, one) for k, one in enumerate(choices[1].choices) if one.token not in known)
    expect(offered.nth(place)).to_contain_text(other.piece)
    offered.nth(place).click()
    prefix = [best.target[0], other.token]
    expect(page.locator(".word.given")).to_have_count(2)
    anew = run.translate("abcd", prefix=prefix)
    expect(page.locator("[data-role=n-best] tbody tr").first).to_contain_text(anew)
    assert value(page, "prefix") == " ".join(map(str, prefix))
    page.go_back()
    expect(page.locator(".word.given")).to_have_count(0)
    page.go_forward()
    expect(page.locator(".word.given")).to_have_count(2)
    page.get_by_role("button", name="Translate freely again").click()
    expect(page.locator(".word.given")).to_have_count(0)
    page.locator(".beam-tree .outranked").first.click()
    page.get_by_role("button", name="Translate on from here").click()
    expect(page.locator(".word.given")).to_have_count(1)


def test_the_modes_and_their_passes(open_page: Callable[..., Page], run: TranslatorRun) -> None:
    page = open_page(ADDRESS)
    page.get_by_role("button", name="Compare all modes").click()
    for mode in ("ar", "nar", "draft"):
        options = {} if mode == "ar" else {"mode": mode, "num_beams": 1}
        one = next(run.translate_lines("abcd", **options))[0]
        row = page.locator(f"[data-mode={mode}] td")
        expect(row.nth(0)).to_have_text(str(one.passes))
        expect(row.nth(3)).to_have_text(one.text)
    page.get_by_label("Mode").select_option("nar")
    expect(page.locator("[data-role=summary]")).to_contain_text("1 passes of the model")
    expect(page.locator("[data-role=tree]")).to_have_count(0)
    page.get_by_label("Refinements").select_option("2")
    expect(page.locator("[data-role=summary]")).to_contain_text("3 passes of the model")


def test_markup_in_a_text_stays_text(open_page: Callable[..., Page]) -> None:
    page = open_page("translate?run=letters&text=<img src=x onerror=document.title=1>ab")
    expect(page.locator("[data-role=tree]")).to_be_visible()
    assert page.locator("main img").count() == 0
    assert page.title().startswith("Translate")


def test_a_run_without_attention_and_modes(open_page: Callable[..., Page]) -> None:
    page = open_page("translate?run=more/translator&text=abc")
    expect(page.locator("[data-role=tree]")).to_be_visible()
    expect(page.locator("[data-role=attention]")).to_have_count(0)
    expect(page.get_by_label("Mode")).to_have_count(0)


def test_a_saved_view_has_the_tree_and_the_matrix(
    open_page: Callable[..., Page], browser: Browser, tmp_path: Path
) -> None:
    page = open_page(ADDRESS)
    page.wait_for_selector(".matrix")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this view").click()
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    saved = browser.new_page()
    saved.goto(file.as_uri())
    assert saved.locator(".beam-tree .node").count() == page.locator(".beam-tree .node").count()
    assert saved.locator(".matrix td").count() == page.locator(".matrix td").count()
    edge = "one => getComputedStyle(one).stroke"
    assert saved.locator(".edge.strong").first.evaluate(edge) == page.locator(".edge.strong").first.evaluate(edge)
    assert re.search(r"score -\d", saved.locator(".node[title]").first.get_attribute("title") or "")
    saved.close()
