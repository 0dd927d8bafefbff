"""What is held out of the training data for validation, when no validation data is given.

text        the end of the text, cut at the end of a line: `share` of its bytes, at most 1 MB
pairs       the last pairs: `share` of them, at most 2,000
examples    labelled texts or tagged sentences drawn at random, since files are often sorted by label: `share` of
            them, at most 5,000; the draw is the same for every seed, so that runs with other seeds are comparable
"""

from __future__ import annotations

import math

import numpy as np

from chainrule.data.rows import Indices
from chainrule.errors import DataError
from chainrule.text.formats.pairs import Pairs, count_pairs, part_of
from chainrule.text.readers import Texts
from chainrule.text.splitting import cut_text

MAX_BYTES = 1_000_000
MAX_PAIRS = 2000
MAX_EXAMPLES = 5000


# Text


def hold_out_text(texts: Texts, share: float) -> tuple[Texts, Texts] | None:
    """The text without its last `share`, and that last share; both are read from the sources, nothing is copied.

    None if the text is a single line.
    """
    return cut_text(texts, max(int(texts.size * (1 - share)), texts.size - MAX_BYTES))


# Pairs


def first_held_out_pair(count: int, share: float) -> int:
    """The index of the first of `count` pairs that is held out; all after it are held out too."""
    if count < 2:
        raise DataError("there is one pair only, so none can be held out; give more pairs, or others with --valid.")
    return count - min(MAX_PAIRS, math.ceil(count * share))


def held_out_pairs(pairs: Pairs, share: float) -> Pairs:
    """The pairs that are held out."""
    return part_of(pairs, first_held_out_pair(count_pairs(pairs), share))


# Labelled texts and tagged sentences


def hold_out_examples(count: int, share: float, name: str) -> tuple[Indices, Indices]:
    """The indices of the examples to train on and of those to validate with, each in order."""
    if count < 2:
        raise DataError(f"{name} holds one text only, so none can be held out; give more, or others with --valid.")
    held_out = min(MAX_EXAMPLES, math.ceil(count * share))
    order_P = np.random.default_rng(0).permutation(count)
    return np.sort(order_P[held_out:]), np.sort(order_P[:held_out])
