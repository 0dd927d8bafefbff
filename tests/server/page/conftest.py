"""A browser, a server of small runs, and pages that fail the test for any error or foreign request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, pairs_text, write_pairs
from requirements import CHROMIUM, need
from services import Service

need("browser")

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright  # noqa: E402


@pytest.fixture(scope="session")
def more_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that only the page's tests need."""
    folder = tmp_path_factory.mktemp("page")
    text = folder / "text.txt"
    text.write_text(pairs_text(400), encoding="utf-8")
    cr.train(text, model="ngram", tokenizer="word", out=folder / "runs" / "words")
    pairs = write_pairs(folder, letter_pairs(200, longest=5))
    shape: dict[str, Any] = {"model": {"embedding": 16, "hidden": 16}, "training": {"max_tokens": 128, "lr": 0.02}}
    cr.train(*pairs, model="hybrid", tokenizer="char", steps=60, out=folder / "runs" / "letters", settings=shape)
    small: dict[str, Any] = {"model": {"vector_size": 8, "min_count": 1}}
    lines = folder / "lines.txt"
    lines.write_text("the cat sat on the mat\na dog ran on the road\n" * 40, encoding="utf-8")
    cr.train(lines, model="word2vec", epochs=2, out=folder / "runs" / "vectors", settings=small)
    blocks = {"model": {"embedding": 8, "hidden": 8, "block": 4, "context": 8, "gamma": 0.3}}
    cr.train(text, model="hybrid-lm", tokenizer="char", steps=8, out=folder / "runs" / "hybrid", settings=blocks)
    return folder / "runs"


@pytest.fixture(scope="session")
def site(runs: Path, more_runs: Path, start: Callable[..., Service]) -> Service:
    """A server of all runs."""
    return start(runs, more_runs)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, site: Service) -> Iterator[Callable[..., Page]]:
    """Open the page at an address after #; any error but those `expected`, and any foreign request, fails the test."""
    contexts, wrong = [], list[str]()

    def note(message: ConsoleMessage, expected: Sequence[str]) -> None:
        if message.type == "error" and not any(one in message.text for one in expected):
            wrong.append(message.text)

    def open_at(address: str = "", *, expected: Sequence[str] = (), **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-US", "accept_downloads": True, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda message: note(message, expected))
        page.on("request", lambda sent: None if _own(sent.url, site.url) else wrong.append(f"request: {sent.url}"))
        page.goto(f"{site.url}/#{address}")
        page.wait_for_selector("main h1")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert not wrong


def _own(url: str, origin: str) -> bool:
    return url.startswith((origin, f"blob:{origin}"))
