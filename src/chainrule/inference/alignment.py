"""One text under several runs with different tokenisers: bits for each word, aligned over characters.

A word is a span of the text that no token of any run crosses: words and punctuation where every tokeniser has a token
boundary there, else several of them together. The white space before a word belongs to it. Words and, for each run, its
formatting add up to the bits of the text.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chainrule.base.html import Html, element, table
from chainrule.base.results import json_value, make_frame
from chainrule.errors import ConfigError
from chainrule.inference.heat_map import background
from chainrule.inference.surprise import Surprise

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[^\S\n]*(?:[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+|[^\w\s]|\n)|[^\S\n]+")
"""A word, ideograph, kana, other character or newline, with the white space before it."""


@dataclass(frozen=True)
class AlignedWord:
    """A part of the text, and its bits under each run."""

    text: str
    begin: int  # in characters
    end: int
    bits: list[float]


@dataclass(frozen=True)
class Alignment:
    """The words of a text with the bits of several runs."""

    runs: list[str]
    text: str
    words: list[AlignedWord]
    formatting_bits: list[float]

    @property
    def bits(self) -> list[float]:
        """All bits of each run."""
        return [
            math.fsum(word.bits[place] for word in self.words) + formatting
            for place, formatting in enumerate(self.formatting_bits)
        ]

    def to_dict(self) -> dict[str, Any]:
        """All values for JSON, infinite bits as None."""
        both: dict[str, Any] = json_value({**asdict(self), "bits": self.bits})
        return both

    def to_pandas(self) -> Any:
        """One row per word, and one column of bits per run."""
        return make_frame(
            [
                {
                    "word": word.text,
                    "begin": word.begin,
                    "end": word.end,
                    **dict(zip(self.runs, word.bits, strict=True)),
                }
                for word in self.words
            ]
        )

    def _repr_html_(self) -> str:
        """A table for notebooks, coloured by bits."""
        finite = [bits for word in self.words for bits in word.bits if math.isfinite(bits)]
        high = max([*finite, 4.0])
        rows: list[list[object]] = [
            [element("code", repr(word.text)), *(_coloured(bits, high) for bits in word.bits)] for word in self.words
        ]
        rows.append(["white space and lines", *(f"{bits:.2f}" for bits in self.formatting_bits)])
        rows.append(["all", *(f"{bits:.2f}" for bits in self.bits)])
        return table(["word", *(f"bits of {run}" for run in self.runs)], rows)


def _coloured(bits: float, high: float) -> Html:
    return element("div", f"{bits:.2f}", style=background(bits, high) + ";text-align:right")


def align(surprises: Sequence[Surprise]) -> Alignment:
    """The words of one text with their bits under several runs.

    Args:
        surprises: What `run.surprise(text)` gives for the same text, one for each run.
    """
    if not surprises or len({one.text for one in surprises}) > 1:
        given = len({one.text for one in surprises})
        raise ConfigError(f"align got {given} different texts; expected the surprise of one text under several runs")
    text = surprises[0].text
    inside = {place for one in surprises for token in one.tokens for place in range(token.begin + 1, token.end)}
    edges = [found.end() for found in WORD.finditer(text) if found.end() < len(text) and found.end() not in inside]
    begins = [0, *edges]
    bits = [_sums(one, begins) for one in surprises]
    spans = zip(begins, [*edges, len(text)], strict=True)
    return Alignment(
        runs=[one.run for one in surprises],
        text=text,
        words=[
            AlignedWord(text[begin:end], begin, end, [of_run[place] for of_run in bits])
            for place, (begin, end) in enumerate(spans)
            if text
        ],
        formatting_bits=[one.formatting_bits for one in surprises],
    )


def _sums(surprise: Surprise, begins: Sequence[int]) -> list[float]:
    """The bits of the tokens of each word, by the characters at which the words begin."""
    sums = [0.0] * len(begins)
    for token in surprise.tokens:
        sums[bisect_right(begins, token.begin) - 1] += token.bits
    return sums
