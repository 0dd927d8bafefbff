"""Holding out the end of a text: nothing lost, nothing twice, cut at a line end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.text.readers import Texts, text_of
from chainrule.text.splitting import hold_out, some_lines


def content(texts: Texts) -> bytes:
    return b"".join(block.data for block in texts.blocks())


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" ")), min_size=2, max_size=40), st.booleans()
)
def test_the_two_parts_are_the_text_and_meet_at_a_line_end(lines: list[bytes], ended: bool) -> None:
    whole = b"\n".join(lines) + (b"\n" if ended else b"x")
    first, last = hold_out(text_of(whole), 0.1) or (None, None)
    if first is None or last is None:
        assert whole.rstrip(b"\n").count(b"\n") == 0 or whole.count(b"\n") <= 1
        return
    assert content(first) + content(last) == whole
    assert content(first).endswith(b"\n")
    assert content(last)


def test_about_the_share_that_is_asked_for_is_held_out() -> None:
    whole = b"".join(b"line %04d\n" % number for number in range(1000))
    first, last = hold_out(text_of(whole), 0.1) or (None, None)
    assert first is not None
    assert last is not None
    assert last.size == 1000
    assert first.size == 9000


def test_one_line_cannot_be_held_out() -> None:
    assert hold_out(text_of(b"only one line\n"), 0.1) is None
    assert hold_out(text_of(b"only one line"), 0.1) is None


@pytest.mark.parametrize(
    ("begin", "end", "expected"), [(0, 2, b"a\nb\n"), (1, None, b"b\n\nd"), (3, 9, b"d"), (0, 0, b"")]
)
def test_some_lines_are_those_between_two_numbers(begin: int, end: int | None, expected: bytes) -> None:
    part = some_lines(text_of("a\nb\n\nd"), begin, end)
    assert b"".join(chunk for source in part.sources for chunk in source.chunks()) == expected
