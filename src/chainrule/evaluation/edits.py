"""Word and character error rates, and exact match.

    error rate    edits (substitutions, insertions, deletions) that turn the output into the reference / its length

Of several references the one that needs the fewest edits counts, the longest one of a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from chainrule.base.arrays import Array
from chainrule.evaluation.metrics import Bleu, WordMetric


class _ErrorRate(WordMetric):
    """Statistics: edits and length of the chosen reference."""

    lower_is_better: ClassVar[bool] = True
    split: Callable[[str], Sequence[str]]

    def count(self, texts: list[Sequence[str]]) -> Array:
        outputs, *references = ([self.split(text) for text in each] for each in texts)
        rows = []
        for output, *own in zip(outputs, *references, strict=True):
            edits, length = min((edit_distance(output, reference), -len(reference)) for reference in own)
            rows.append((edits, -length))
        return np.array(rows, np.float64)

    def scores(self, sums_KF: Array) -> Array:
        """Return edits in percent of the length of the references; above 100 if outputs are much longer."""
        return np.asarray(100 * sums_KF[:, 0] / np.maximum(sums_KF[:, 1], 1))


class WordErrorRate(_ErrorRate):
    """WER over words split at white space, or as a tokeniser of BLEU splits them."""

    def __init__(self, *, tokenizer: str = "none", lowercase: bool = False) -> None:
        self.settings = {"case": "lc" if lowercase else "mixed", "tok": tokenizer}
        self.split = Bleu(tokenizer=tokenizer, lowercase=lowercase).words


class CharacterErrorRate(_ErrorRate):
    """CER over characters; runs of white space count as one space, surrounding white space not at all."""

    def __init__(self, *, lowercase: bool = False) -> None:
        self.settings = {"case": "lc" if lowercase else "mixed", "tok": "characters"}
        self._lowercase = lowercase

    def split(self, text: str) -> str:
        text = " ".join(text.split())
        return text.lower() if self._lowercase else text


class ExactMatch(WordMetric):
    """Percentage of outputs that equal one of their references, ignoring surrounding white space."""

    def __init__(self, *, lowercase: bool = False) -> None:
        self.settings = {"case": "lc" if lowercase else "mixed"}
        self._lowercase = lowercase

    def count(self, texts: list[Sequence[str]]) -> Array:
        rows = zip(*[map(self._normalise, each) for each in texts], strict=True)
        return np.array([(output in own, 1) for output, *own in rows], np.float64)

    def scores(self, sums_KF: Array) -> Array:
        return np.asarray(100 * sums_KF[:, 0] / sums_KF[:, 1])

    def _normalise(self, text: str) -> str:
        return text.strip().lower() if self._lowercase else text.strip()


def edit_distance(output: Sequence[str], reference: Sequence[str]) -> int:
    """Return the Levenshtein distance, by a whole row of its table at a time (Myers, 1999; Hyyrö, 2003).

    Bit i of `rising` is set where the row grows by one from column i to i + 1, of `falling` where it shrinks.
    """
    if not reference:
        return len(output)
    bits: dict[str, int] = {}
    for place, word in enumerate(reference):
        bits[word] = bits.get(word, 0) | 1 << place
    every, last = (1 << len(reference)) - 1, 1 << len(reference) - 1
    rising, falling, distance = every, 0, len(reference)
    for word in output:
        equal = bits.get(word, 0)
        diagonal = ((equal & rising) + rising ^ rising) | equal
        up, down = falling | ~(diagonal | rising) & every, rising & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = (up << 1 | 1) & every, down << 1 & every
        vertical = equal | falling
        rising, falling = (down | ~(vertical | up)) & every, up & vertical
    return distance
