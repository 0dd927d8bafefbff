"""The spaces of lines, against a loop over the lines."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from itertools import pairwise

import pytest

from chainrule.base.lazy import LazyKernels
from chainrule.text.coding import line_spaces as measured
from chainrule.text.coding.line_spaces import OTHER_SPACES, line_spaces
from chainrule.text.tokenizers.word_table import Words

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


@pytest.fixture(autouse=True, params=["numpy", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = LazyKernels("chainrule.text.coding.space_kernels", budget=-1 if request.param == "compiled" else 1 << 30)
    monkeypatch.setattr(measured, "_kernels", kernels)


def naive(text: str) -> tuple[dict[tuple[int, bool, int], int], dict[int, int], dict[int, int]]:
    frames, gaps, blank = Counter[tuple[int, bool, int]](), Counter[int](), Counter[int]()
    for line in text.removesuffix("\n").split("\n"):
        core = line.strip(" ")
        if not core:
            blank[len(line)] += 1
            continue
        frames[len(line) - len(line.lstrip(" ")), "  " not in core, len(line) - len(line.rstrip(" "))] += 1
        if "  " in core:
            gaps.update(map(len, re.findall(" +", core)))
    return frames, gaps, blank


@pytest.mark.parametrize("text", TEXTS)
def test_spaces_of_lines(text: str) -> None:
    assert line_spaces(text) == naive(text)
    assert line_spaces(text, Words.of(text.encode(errors="surrogatepass"))) == naive(text)


def assert_in_order(text: str) -> None:
    found, expected = line_spaces(text), naive(text)
    assert found == expected
    assert list(found.frames) == list(expected[0])
    assert list(found.gaps) == list(expected[1])
    assert list(found.blank) == list(expected[2])


def test_spaces_of_random_lines_in_the_order_of_the_text() -> None:
    random_text = random.Random(0)
    for _ in range(200):
        assert_in_order("".join(random_text.choices("  ab\n", k=random_text.randrange(60))) + "\n")


def test_many_different_spaces() -> None:
    sizes = random.Random(0).choices(range(300), k=3000)
    assert_in_order("".join(f"{' ' * size}a{' ' * other}b \n" for size, other in pairwise(sizes)))


@pytest.mark.parametrize("space", OTHER_SPACES)
def test_other_white_space_is_noticed(space: str) -> None:
    assert line_spaces(f"a b{space}\n") is None


def test_all_white_space_is_known() -> None:
    white = {chr(point) for point in range(sys.maxunicode + 1) if chr(point).isspace()}
    assert white == {" ", "\n", *OTHER_SPACES}
    assert line_spaces("".join(map(chr, range(0x21, 0x80))) + "—“中é\n") is not None
