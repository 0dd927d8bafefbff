"""Some of the lines of a text."""

from __future__ import annotations

import pytest

from chainrule.text.readers import text_of
from chainrule.text.splitting import some_lines


@pytest.mark.parametrize(
    ("begin", "end", "expected"), [(0, 2, b"a\nb\n"), (1, None, b"b\n\nd"), (3, 9, b"d"), (0, 0, b"")]
)
def test_lines_between_two_indices(begin: int, end: int | None, expected: bytes) -> None:
    part = some_lines(text_of("a\nb\n\nd"), begin, end)
    assert b"".join(chunk for source in part.sources for chunk in source.chunks()) == expected
    assert part.name == f"text (from line {begin + 1})"
