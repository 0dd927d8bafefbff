"""Texts as lines: what of HTML is text, and that the rest stays as it is."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.text.documents import HtmlText, PlainText

PAGES: list[tuple[str, list[str]]] = [
    ("Hello", ["Hello"]),
    ("", []),
    ("<p>Hello <b>big</b> world</p>", ["Hello", "big", "world"]),
    ("<p>two\n  lines</p>\n\n<p>more</p>", ["two lines", "more"]),
    ('<a title="a > b" href=\'x">y\'>text</a>', ["text"]),
    ("fish &amp; chips&nbsp;&lt;5", ["fish & chips <5"]),
    ("a < b and b > c", ["a < b and b > c"]),
    ("before<!-- <p>no</p> -->after", ["before", "after"]),
    ("<!DOCTYPE html><?xml version='1'?>text", ["text"]),
    ("<SCRIPT>let a = '<p>';</script >x<style>p { }</style>", ["x"]),
    ("use <code>a<b>c</b></code> and <pre>\n x\n</pre> or <textarea>y</textarea>", ["use", "and", "or"]),
    ("<codex>text</codex>", ["text"]),
    ("<p>—</p> · <p>1</p>", ["1"]),
    ("open <!-- never closed <p>x</p>", ["open"]),
    ("open <script> never closed", ["open"]),
    ("</code>text</code>", ["text"]),
    ('<p class="never closed>text', ['<p class="never closed>text']),
    ("<p", ["<p"]),
    ("x <", ["x <"]),
]


@pytest.mark.parametrize(("text", "lines"), PAGES)
def test_the_lines_of_html(text: str, lines: list[str]) -> None:
    assert HtmlText(text).lines == lines


def test_only_lines_are_replaced() -> None:
    text = '<p class="a">\n  Hello\n world <b>&amp;</b>\n<i>more</i></p><!-- x -->'
    found = HtmlText(text)
    assert found.joined(["1 < 2 & 3", "z"]) == '<p class="a">\n  1 &lt; 2 &amp; 3 <b>&amp;</b>\n<i>z</i></p><!-- x -->'


@given(st.text(alphabet="<>!-/?'\" abp\n", max_size=60))
def test_any_text_is_put_together_again(text: str) -> None:
    """But for white space within lines, and characters that are written as references."""
    found = HtmlText(text)
    again = found.joined(found.lines)
    assert HtmlText(again).lines == found.lines
    assert "".join(html.unescape(again).split()) == "".join(text.split())


@pytest.mark.parametrize("part", ["<a", "<p ", "<!--", "<script", "<a '\"", "<a \"'", "<" + "a" * 40, "&", "<a b='"])
def test_long_texts_without_ends_are_read(part: str) -> None:
    """In one pass: a rule that read the rest of the text at each part would take hours."""
    text = part * 200_000
    found = HtmlText(text)
    assert "".join(html.unescape(found.joined(found.lines)).split()) == "".join(text.split())


def test_plain_lines() -> None:
    assert PlainText("a\r\n\nb").lines == ["a", "", "b"]
    assert PlainText("a\r\n\nb").joined(["x", "", "z"]) == "x\n\nz"
