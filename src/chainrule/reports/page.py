"""The page of a report: one file that makes no request, reads without scripts, and prints.

The Content-Security-Policy allows nothing from elsewhere, and only those scripts whose hash it names. Texts are
escaped; data for scripts is JSON in a block that is never executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from chainrule.base.html import Html, element, escape, join
from chainrule.reports.blocks.block import Page
from chainrule.reports.charts.library import vl_convert
from chainrule.reports.section import Section

START = "for(const[name,spec]of Object.entries(JSON.parse(document.getElementById('specs').textContent)))" + (
    "vegaEmbed(`#${name} .drawing`,spec,{actions:false,ast:true,renderer:'svg'});"
)
"""Replaces the drawings by charts. `ast`: expressions are interpreted, since the policy allows no eval."""


def render(title: str, summary: str, sections: Sequence[Section], *, interactive: bool = False) -> str:
    """The whole page."""
    page = Page(interactive)
    body = join(_section(section, page) for section in sections)
    scripts = [_asset("report.js")]
    if interactive:
        scripts += [vl_convert.javascript_bundle().replace("</script", "<\\/script"), START]
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(scripts))}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", Html(_asset("report.css"))),
        ]
    )
    links = join(element("a", section.title, href=f"#{section.name}") for section in sections)
    header = element(
        "header", element("h1", title), element("p", summary), element("nav", links, aria_label="sections")
    )
    data = [_data_block("specs", page.specs)] if interactive else []
    after = join([*data, *(element("script", Html(script)) for script in scripts)])
    whole = element("html", element("head", head), element("body", header, element("main", body), after), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _section(section: Section, page: Page) -> Html:
    about = element("p", section.about, class_="about") if section.about else Html("")
    blocks = join(block.html(page) for block in section.blocks)
    return element("section", element("h2", section.title), about, blocks, id=section.name)


def _policy(scripts: Sequence[str]) -> str:
    """Nothing from elsewhere; styles in the page; the scripts with these hashes."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}; base-uri 'none'"


def _data_block(name: str, value: Any) -> Html:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')


def _asset(name: str) -> str:
    return files("chainrule.reports").joinpath("assets", name).read_text(encoding="utf-8").strip()
