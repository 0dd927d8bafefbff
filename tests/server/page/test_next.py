"""Next token: bars before and after the filters, choosing, undoing, branching, generating."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import chainrule as cr


def set_slider(page: Page, name: str, value: float) -> None:
    slider = page.get_by_role("slider", name=re.compile(f"^{name}"))
    slider.evaluate("(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", value)


def bars(page: Page) -> dict[int, float]:
    shown = page.locator("button.bar").evaluate_all("all => all.map(one => [one.dataset.id, one.dataset.after])")
    return {int(token): float(after) for token, after in shown}


@pytest.mark.parametrize("name", ["ngram", "transformer", "mixture"])
@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(0.5, None, 1), (1.7, 5, 1), (1, None, 0.8), (0.6, 3, 0.7), (0, None, 1)]
)
def test_the_filters_are_those_of_generate(
    open_page: Callable[..., Page], runs: Path, name: str, temperature: float, k: int | None, p: float
) -> None:
    given = f"&t={temperature}&p={p}" + (f"&k={k}" if k else "")
    page = open_page(f"next?run={name}&text=abab{given}")
    page.wait_for_selector("button.bar")
    after_V = cr.load(runs / name).next_token("abab").filtered(temperature, k, p)
    for token, after in bars(page).items():
        assert after == pytest.approx(after_V[token], abs=2e-6)
    kept = int(np.count_nonzero(after_V))
    assert page.locator("[data-role=kept]").inner_text().startswith(f"{kept} of {len(after_V)} tokens")


def test_sliders_act_at_once_and_cut_tokens_stay_visible(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page("next?run=ngram&text=abab")
    page.wait_for_selector("button.bar")
    count, asked = page.locator("button.bar").count(), []
    page.on("request", lambda sent: asked.append(sent.url) if "icon" not in sent.url else None)
    set_slider(page, "Top-k", 1)
    assert page.locator("li.cut").count() == count - 2
    set_slider(page, "Temperature", 0.5)
    set_slider(page, "Top-p", 0.5)
    expect(page).to_have_url(re.compile(r"t=0\.5&k=2|k=2&t=0\.5"))
    expect(page).to_have_url(re.compile(r"p=0\.5"))
    assert not asked
    after_V = cr.load(runs / "ngram").next_token("abab").filtered(0.5, 2, 0.5)
    assert all(after == pytest.approx(after_V[token], abs=2e-6) for token, after in bars(page).items())


def story(page: Page) -> Locator:
    return page.locator("[data-role=story]")


def shown(text: str) -> re.Pattern[str]:
    """A text as the page shows it: newlines have a sign."""
    return re.compile("^" + re.escape(text).replace("\\\n", "↵\\s*") + "$")


def test_choose_undo_and_branch(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page("next?run=ngram&text=abab")
    run = cr.load(runs / "ngram")
    first, second = run.next_token("abab").best(2)
    page.locator("button.bar").nth(0).click()
    expect(story(page)).to_have_text(shown("abab" + first.text))
    then = run.next_token("abab", tokens=[first.id]).best(1)[0]
    expect(page.locator("button.bar").first).to_have_attribute("data-id", str(then.id))
    expect(page.locator("button.bar").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(story(page)).to_have_text(shown("abab" + first.text + then.text))
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    page.locator("button.bar").nth(0).press("ArrowDown")
    page.keyboard.press("Enter")
    expect(story(page)).to_have_text(shown("abab" + second.text))
    branches = page.get_by_role("treeitem")
    assert branches.count() == 2
    page.reload()
    page.wait_for_selector("[role=treeitem]")
    assert branches.count() == 2
    branches.nth(0).click()
    expect(story(page)).to_have_text(shown("abab" + first.text + then.text))
    story(page).locator("button").first.click()
    expect(story(page)).to_have_text("abab")


def test_generation_streams_and_continues_from_its_tokens(open_page: Callable[..., Page], runs: Path) -> None:
    page = open_page("next?run=transformer&text=abab&t=0&n=6")
    page.wait_for_selector("button.bar")
    page.get_by_role("button", name="Generate").click()
    expect(story(page).locator("button")).to_have_count(7)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    (generated,) = cr.load(runs / "transformer").generate("abab", max_new_tokens=6, stop_at_eos=False)
    assert "".join(story(page).locator("button").all_text_contents()).replace("↵", "") == generated.text
    page.locator("button.bar").first.click()
    expect(story(page).locator("button")).to_have_count(8)


STOP_AT_ONCE = """() => {
  const stop = [...document.querySelectorAll("button")].find((one) => one.textContent === "Stop");
  const story = document.querySelector("[data-role=story]");
  new MutationObserver(() => { if (story.querySelectorAll("button").length > 2) stop.click(); })
    .observe(story, { childList: true, subtree: true });
}"""


def test_generation_can_be_stopped(open_page: Callable[..., Page]) -> None:
    page = open_page("next?run=mixture&text=ab&n=500")
    page.wait_for_selector("button.bar")
    page.evaluate(STOP_AT_ONCE)  # in the page: a test would be too late
    page.get_by_role("button", name="Generate").click()
    expect(story(page).locator("button").nth(2)).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert story(page).locator("button").count() < 501


def test_a_wrong_tree_in_the_address_is_ignored(open_page: Callable[..., Page]) -> None:
    page = open_page('next?run=ngram&text=ab&tree={"nodes":[[5,"x",{}]],"at":9}')
    page.wait_for_selector("button.bar")
    expect(story(page)).to_have_text("ab")
