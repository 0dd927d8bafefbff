"""How quickly the page appears and colours a text, in a real browser.

    python bench/page.py

Printed, each the median of several rounds:

    first page   from the start of `chainrule serve RUN --open` to the first paint of the page, of an n-gram and of a
                 Transformer, and the time that `chainrule.load(RUN).model` takes in a process of its own
    serving      from the start of `chainrule serve RUN` to the line that gives its address
    painted      from opening the address, with the run not loaded yet, to the first paint of the page
    answer       of the server for 2,000 tokens, as the browser sees it
    coloured     from that answer to 2,000 coloured tokens, laid out
    why, next    from the request of a view to its answer on the page, with the run loaded
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright

TOKENS = 2000
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
COLOURED = """() => {
  const answer = performance.getEntriesByType('resource').find((one) => one.name.endsWith('page/api/bits'));
  const marks = performance.getEntriesByName('coloured');
  return { answer: answer.duration, coloured: marks[marks.length - 1].startTime - answer.responseEnd };
}"""


def make_run(folder: Path) -> tuple[Path, str]:
    """An n-gram model of characters, and a text of 2,000 tokens."""
    import chainrule as cr
    from chainrule.text.samples.texts import english_text

    text = english_text()
    (folder / "text.txt").write_text(text[:300_000], encoding="utf-8")
    cr.train(folder / "text.txt", model="ngram", tokenizer="char", out=folder / "ngram")
    return folder / "ngram", text[300_000 : 300_000 + TOKENS]


def make_transformer(folder: Path) -> Path:
    """A small Transformer over characters."""
    import chainrule as cr

    cr.train(folder / "text.txt", model="transformer", tokenizer="char", steps=2, out=folder / "transformer")
    return folder / "transformer"


def start(run: Path, *options: str) -> tuple[subprocess.Popen[str], str, float]:
    """A server, its address, and the seconds until it was there."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "chainrule.cli.main", "serve", str(run), "--port", "0", "--quiet", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": "true"})
    assert server.stderr is not None
    found = re.search(r"at (http://\S+)", server.stderr.readline())
    assert found
    return server, found[1], time.perf_counter() - began


def measure(browser: Browser, run: Path, text: str) -> dict[str, float]:
    """One round with a new server and a new browser context, in milliseconds."""
    server, address, serving = start(run)
    try:
        page = browser.new_context().new_page()
        page.goto(f"{address}/")
        result = {"serving": 1000 * serving, "painted": wait_for(page, PAINTED)}
        page.wait_for_selector(".token")
        page.goto("about:blank")
        page.goto(f"{address}/#bits?{urlencode({'text': text})}")
        wait_for(page, "performance.getEntriesByName('coloured').length")
        result |= page.evaluate(COLOURED)
        assert page.locator(".token").count() == TOKENS
        result["why"] = visit(page, f"{address}/#why?{urlencode({'text': text[:200]})}", "[data-role=reasons] .card")
        result["next"] = visit(page, f"{address}/#next?{urlencode({'text': text[:200]})}", "button.bar")
        page.context.close()
        return result
    finally:
        server.terminate()
        server.wait(60)


def first_page(browser: Browser, run: Path) -> dict[str, float]:
    """From the start of a server to the first paint, which the browser does at once, and the time to load the run."""
    server, address, serving = start(run, "--open")
    try:
        page = browser.new_context().new_page()
        page.goto(f"{address}/", wait_until="commit")
        painted = wait_for(page, PAINTED)
        page.wait_for_selector(".token", timeout=60_000)
        page.context.close()
    finally:
        server.terminate()
        server.wait(60)
    script = f"import time, chainrule as cr; began = time.perf_counter(); cr.load({str(run)!r}).model; "
    script += "print(time.perf_counter() - began)"
    loading = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return {f"{run.name}: first page": 1000 * serving + painted, f"{run.name}: loading": 1000 * float(loading)}


def wait_for(page: Page, expression: str) -> float:
    """The value of an expression as soon as it has one. (The page's policy forbids that the browser polls it.)"""
    while not (value := page.evaluate(expression)):
        time.sleep(0.01)
    return float(value)


def visit(page: Page, address: str, selector: str) -> float:
    """Milliseconds from another view to something that this one shows."""
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(selector)
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        run, text = make_run(Path(name))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        other = make_transformer(Path(name))
        rounds = [
            {**first_page(browser, run), **first_page(browser, other), **measure(browser, run, text)}
            for _ in range(given.rounds)
        ]
        browser.close()
    for key in rounds[0]:
        print(f"{key:24} {statistics.median(one[key] for one in rounds):8.0f} ms")


if __name__ == "__main__":
    main()
