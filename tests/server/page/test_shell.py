"""The frame of the page: policy, languages, themes, keys, addresses, saved views."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from services import Service

TEXT = "a b c d"


def test_the_policy_forbids_everything_from_elsewhere(site: Service) -> None:
    for path in ("/", "/page/core/main.js", "/page/style/base.css"):
        answer = httpx2.get(site.url + path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        again = httpx2.get(site.url + path, headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304


@pytest.mark.parametrize("path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page/nothing.js", "/page/README.md"])
def test_only_files_of_the_page_are_served(site: Service, path: str) -> None:
    assert httpx2.get(site.url + path).status_code == 404


def test_the_interface_is_in_the_language_of_the_browser_and_can_be_switched(open_page: Callable[..., Page]) -> None:
    page = open_page(f"bits?text={TEXT}", locale="zh-CN")
    expect(page.locator("h1")).to_have_text("文本比特图")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    page.get_by_label("语言").select_option("en")
    expect(page.locator("h1")).to_have_text("Text in bits")
    expect(page.get_by_label("Text")).to_have_value(TEXT)
    page.reload()
    expect(page.locator("h1")).to_have_text("Text in bits")


def test_the_theme_follows_the_system_until_it_is_chosen(open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).getPropertyValue('--paper')"
    dark = page.evaluate(paper)
    page.locator("#theme").press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate(paper) != dark
    page.reload()
    page.wait_for_selector("main h1")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator("#theme")).to_have_accessible_name("Theme: Light")


def test_a_saved_view_is_one_file_without_scripts_and_requests(
    open_page: Callable[..., Page], browser: Browser, tmp_path: Path
) -> None:
    page = open_page("bits?run=ngram&text=" + "<script>document.title='broken'</script> a b")
    page.wait_for_selector(".token")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this view").click()
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "default-src 'none'" in text
    offline = browser.new_context(offline=True)
    saved, asked = offline.new_page(), []
    saved.on("request", lambda sent: asked.append(sent.url))
    saved.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert saved.title().startswith("Text in bits")
    tokens = saved.locator(".token")
    assert tokens.count() == page.locator(".token").count()
    assert "bits, p" in (tokens.first.get_attribute("title") or "")
    heat = "one => getComputedStyle(one).backgroundColor"
    assert tokens.nth(3).evaluate(heat) == page.locator(".token").nth(3).evaluate(heat)
    offline.close()


def test_an_api_key_is_asked_for_and_kept_for_the_tab(
    start: Callable[..., Service], runs: Path, browser: Browser
) -> None:
    guarded = start(runs / "ngram", environment={"CHAINRULE_API_KEYS": "secret"})
    assert httpx2.get(guarded.url + "/page/api/runs").status_code == 401
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    page.goto(guarded.url)
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("API key").fill("secret")
    dialog.get_by_role("button", name="Use this key").click()
    page.wait_for_selector(".token")
    assert "secret" not in page.url
    page.reload()
    page.wait_for_selector(".token")
    context.close()
