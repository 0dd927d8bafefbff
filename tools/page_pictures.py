"""Draw the pictures of docs/page.md: the views of the page over the runs of `chainrule demo`, in a real browser.

    chainrule demo --out runs/demo
    python tools/page_pictures.py runs/demo
    python tools/page_pictures.py runs/en-de runs/topics runs/vectors runs/lstm   # the views of other tasks

Needs the package playwright and chromium.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from playwright.sync_api import Browser, sync_playwright

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
TEXT = (
    "The value of the expression is evaluated before the statement.\nThe class definition is an executable statement."
)
WIDE: dict[str, Any] = {"viewport": {"width": 1160, "height": 760}}
TALL: dict[str, Any] = {"viewport": {"width": 1160, "height": 1000}}
LONG: dict[str, Any] = {"viewport": {"width": 1160, "height": 2010}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}}


class Picture(NamedTuple):
    """A view, and how it is drawn."""

    name: str
    view: str
    values: dict[str, str]
    options: dict[str, Any]


def pictures(names: list[str]) -> list[Picture]:
    """The pictures over the runs with these names."""
    ngram = next(name for name in names if "Kneser" in name and "mixture" not in name)
    mixture = next(name for name in names if name.startswith("mixture"))
    dark = {**WIDE, "color_scheme": "dark"}
    return [
        Picture("page-bits", "bits", {"run": ngram, "text": TEXT, "at": "5"}, WIDE),
        Picture("page-next", "next", {"run": ngram, "text": "The value of the", "t": "0.7", "k": "12"}, WIDE),
        Picture("page-why", "why", {"run": mixture, "text": TEXT, "at": "5"}, WIDE),
        Picture("page-attention", "why", {"run": "transformer", "text": TEXT, "at": "12"}, dark),
        Picture("page-side", "side", {"runs": f"{ngram}|lstm|transformer", "text": TEXT}, TALL),
        Picture("page-phone-zh", "bits", {"run": ngram, "text": TEXT}, {**PHONE, "locale": "zh-CN"}),
    ]


def pictures_of_tasks(runs: list[dict[str, Any]]) -> list[Picture]:
    """The views of translators, classifiers and word vectors, and of all runs together."""
    first = {run["task"]: run["name"] for run in reversed(runs)}
    source = "A man is riding a red bike in the street."
    label = "Return the square root of x, or raise an error if it is negative."
    return [
        Picture("page-translate", "translate", {"run": first["translation"], "text": source}, LONG),
        Picture("page-runs", "runs", {}, {"viewport": {"width": 1160, "height": 1380}, "color_scheme": "dark"}),
        Picture("page-vectors", "vectors", {"run": first["vectors"], "word": "company"}, WIDE),
        Picture("page-labels", "labels", {"run": first["labels"], "text": label}, WIDE),
    ]


def draw(browser: Browser, address: str, picture: Picture, folder: Path) -> None:
    """Write one picture."""
    context = browser.new_context(**{"locale": "en-US", **picture.options})
    page = context.new_page()
    page.goto(f"{address}/#{picture.view}?{urlencode(picture.values)}")
    page.wait_for_load_state("networkidle")
    page.locator("main[aria-busy=false]").wait_for()
    page.screenshot(path=folder / f"{picture.name}.png")
    context.close()


def main() -> None:
    """Serve the runs, and draw all views."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=PICTURES)
    given = parser.parse_args()
    command = [sys.executable, "-m", "chainrule.cli.main", "serve", *map(str, given.runs), "--port", "0", "--quiet"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        found = re.search(r"serving (.*) at (http://\S+)", line)
        assert found, line + server.stderr.read()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            given.out.mkdir(parents=True, exist_ok=True)
            with urlopen(f"{found[2]}/page/api/runs") as answer:
                runs = json.load(answer)["runs"]
            has_translator = any(run["task"] == "translation" for run in runs)
            for picture in pictures_of_tasks(runs) if has_translator else pictures(found[1].split(", ")):
                draw(browser, found[2], picture, given.out)
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
