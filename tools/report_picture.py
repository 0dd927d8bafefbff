"""Photograph sections of a report: `python tools/report_picture.py report.html docs/report.png leaderboard sample`.

Needs the package playwright and chromium. The sections are named by their anchors; the header comes first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, MOST = 1000, 1000, 1550
"""Pixels of the window, and of the picture at most."""


def main() -> None:
    """Open the report, hide the other sections, and save what is left as a picture of few colours."""
    source, target, *sections = sys.argv[1:]
    kept = ", ".join(f"#{name}" for name in sections)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(Path(source).resolve().as_uri())
        page.add_style_tag(
            content=f"section:not({kept}) {{ display: none }} .pick, details, .filter {{ display: none }}"
        )
        height = min(MOST, page.evaluate("document.body.scrollHeight"))
        page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()
    _shrink(Path(target))


def _shrink(path: Path) -> None:
    """A page has few colours: a palette makes the file several times smaller."""
    from PIL import Image

    Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=160).save(path, optimize=True)


if __name__ == "__main__":
    main()
