"""What is held out of the training data for validation, when no validation data is given.

text        the end of the text, cut at the end of a line: `share` of its bytes
pairs       the last pairs: `share` of them, at most 2,000
examples    labelled texts or tagged sentences drawn at random, since files are often sorted by label: `share` of
            them, at most 5,000; the draw is the same for every seed, so that runs with other seeds are comparable
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chainrule.data.rows import Indices
from chainrule.errors import DataError
from chainrule.text.formats.pairs import Pairs, part_of
from chainrule.text.readers import Texts, lines_in
from chainrule.text.sources import TextSource

MAX_PAIRS = 2000
MAX_EXAMPLES = 5000


# Text


def hold_out_text(texts: Texts, share: float) -> tuple[Texts, Texts] | None:
    """The text without its last `share`, and that last share; both are read from the sources, nothing is copied.

    None if the text is a single line.
    """
    cut = _line_end_near(texts, int(texts.size * (1 - share)))
    if cut is None:
        return None
    first = TextSource(f"{texts.name} (first {1 - share:.0%})", lambda: _slice(texts, 0, cut))
    last = TextSource(f"{texts.name} (last {share:.0%})", lambda: _slice(texts, cut, texts.size))
    return Texts([first]), Texts([last])


def _line_end_near(texts: Texts, target: int) -> int | None:
    """The offset after the last newline before `target`, else after the next one that does not end the text."""
    before = None
    for block in texts.blocks():
        newline = block.data.rfind(b"\n", 0, max(0, target - block.offset))
        if newline >= 0:
            before = block.offset + newline + 1
        if block.offset + len(block.data) >= target:
            after = block.data.find(b"\n", max(0, target - block.offset))
            if before:
                return before
            if after >= 0 and block.offset + after + 1 < texts.size:
                return block.offset + after + 1
    return None


def _slice(texts: Texts, begin: int, end: int) -> Iterator[bytes]:
    for block in texts.blocks():
        part = block.data[max(0, begin - block.offset) : max(0, end - block.offset)]
        if part:
            yield part


# Pairs


def first_held_out_pair(count: int, share: float) -> int:
    """The index of the first of `count` pairs that is held out; all after it are held out too."""
    if count < 2:
        raise DataError("there is one pair only, so none can be held out; give more pairs, or others with --valid.")
    return count - min(MAX_PAIRS, math.ceil(count * share))


def held_out_pairs(pairs: Pairs, share: float) -> Pairs:
    """The pairs that are held out."""
    return part_of(pairs, first_held_out_pair(sum(1 for _ in lines_in(pairs.target)), share))


# Labelled texts and tagged sentences


def hold_out_examples(count: int, share: float, name: str) -> tuple[Indices, Indices]:
    """The indices of the examples to train on and of those to validate with, each in order."""
    if count < 2:
        raise DataError(f"{name} holds one text only, so none can be held out; give more, or others with --valid.")
    held_out = min(MAX_EXAMPLES, math.ceil(count * share))
    order_P = np.random.default_rng(0).permutation(count)
    return np.sort(order_P[held_out:]), np.sort(order_P[:held_out])
