"""Vectors and labels in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import chainrule as cr
from chainrule.runs.labels import ClassifierRun, TaggerRun
from chainrule.runs.vectors import VectorRun


@pytest.fixture(scope="module")
def words(more_runs: Path) -> VectorRun:
    run = cr.load(more_runs / "vectors")
    assert isinstance(run, VectorRun)
    return run


def test_neighbours_and_a_map(open_page: Callable[..., Page], words: VectorRun) -> None:
    page = open_page("vectors?run=vectors&word=cat")
    near = page.locator("[data-role=neighbours] button")
    expected = words.neighbours("cat", top=30)
    expect(near).to_have_count(len(expected))
    expect(near.first).to_contain_text(expected[0].word)
    expect(near.first).to_contain_text(f"{expected[0].cosine:.3f}")
    points = page.locator("[data-role=map] .point")
    expect(points).to_have_count(len(expected) + 1)
    expect(page.locator("[data-role=map] .asked text")).to_have_text("cat")
    near.first.click()
    expect(page.locator("[data-role=query]")).to_have_value(expected[0].word)
    expect(page.locator("[data-role=map] .asked text")).to_have_text(expected[0].word)
    page.go_back()
    expect(page.locator("[data-role=query]")).to_have_value("cat")


def test_an_analogy_and_keys_on_the_map(open_page: Callable[..., Page], words: VectorRun) -> None:
    page = open_page("vectors?run=vectors")
    expect(page.locator("[data-role=map] .point")).to_have_count(len(words))
    page.locator("[data-role=query]").fill("cat - dog + road")
    page.locator("[data-role=query]").press("Enter")
    expected = words.analogy("cat", "dog", "road", top=30)
    expect(page.locator("[data-role=neighbours] button").first).to_contain_text(expected[0].word)
    expect(page.locator("[data-role=map] .asked")).to_have_count(3)
    first = page.locator("[data-role=map] .point[tabindex='0']")
    first.focus()
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    chosen = page.evaluate("document.activeElement.querySelector('title').textContent")
    page.keyboard.press("Enter")
    expect(page.locator("[data-role=query]")).to_have_value(chosen)


def test_a_map_of_texts_and_an_unknown_word(open_page: Callable[..., Page]) -> None:
    page = open_page("vectors?run=vectors&texts=the cat sat%0Aa dog ran%0Athe road")
    expect(page.locator("[data-role=map] .point")).to_have_count(3)
    expect(page.locator("[data-role=map]")).to_contain_text("a dog ran")


def test_labels_and_what_the_pooling_looked_at(open_page: Callable[..., Page], runs: Path) -> None:
    run = cr.load(runs / "more" / "classifier")
    assert isinstance(run, ClassifierRun)
    page = open_page("labels?run=more/classifier&text=good text")
    bars = page.locator("[data-role=labels] .bar")
    expected = run.classify("good text", top=2)
    expect(bars).to_have_count(2)
    expect(bars.first).to_contain_text(expected[0].label)
    expect(bars.first).to_contain_text(f"{expected[0].probability:.3f}")
    tokens = page.locator("[data-role=attention] .token")
    seen = run.attention("good text")
    expect(tokens).to_have_count(len(seen.tokens))
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-role=share]")).to_contain_text(f"{100 * seen.weights[1]:.1f}% of the attention")
    page.get_by_label("Text", exact=True).fill("bad text")
    page.get_by_role("button", name="Label").click()
    expect(tokens.first).to_have_text("bad")


def test_tags_of_words(open_page: Callable[..., Page], runs: Path) -> None:
    run = cr.load(runs / "more" / "tagger")
    assert isinstance(run, TaggerRun)
    page = open_page("labels?run=more/tagger&text=the cat sat")
    tagged = page.locator("[data-role=tags] .tagged")
    expect(tagged).to_have_count(3)
    for place, tag in enumerate(run.tag("the cat sat")):
        expect(tagged.nth(place).locator("b")).to_have_text(tag)
    tagged.first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-role=tag-details]")).to_contain_text("Tags of “cat”")
    expect(page.locator("[data-role=tag-details] .bar")).to_have_count(3)
