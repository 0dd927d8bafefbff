"""The spaces of lines, against a loop over the lines."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from chainrule.text.coding.line_spaces import line_spaces

TEXTS = [
    "\n",
    " \n",
    "a\n",
    " a  b c \n\n  \nd\n",
    "é  ü\n 中 \n",
    "a b\n" * 3,
    "\ud800  x\n",
    "  a b\nc   d  e\n  f  \n",
]


def naive(text: str) -> tuple[dict[tuple[int, bool, int], int], dict[int, int], list[int]]:
    frames, gaps, blank = Counter[tuple[int, bool, int]](), Counter[int](), list[int]()
    for line in text.removesuffix("\n").split("\n"):
        core = line.strip(" ")
        if not core:
            blank.append(len(line))
            continue
        frames[len(line) - len(line.lstrip(" ")), "  " not in core, len(line) - len(line.rstrip(" "))] += 1
        if "  " in core:
            gaps.update(map(len, re.findall(" +", core)))
    return frames, gaps, blank


@pytest.mark.parametrize("text", TEXTS)
def test_spaces_of_lines(text: str) -> None:
    assert line_spaces(text) == naive(text)


def test_spaces_of_random_lines_in_the_order_of_the_text() -> None:
    random_text = random.Random(0)
    for _ in range(200):
        text = "".join(random_text.choices("  ab\n", k=random_text.randrange(60))) + "\n"
        found, expected = line_spaces(text), naive(text)
        assert found == expected
        assert list(found.frames) == list(expected[0])
        assert list(found.gaps) == list(expected[1])
