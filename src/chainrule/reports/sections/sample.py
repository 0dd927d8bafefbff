"""A passage of the test text under every run: coloured by bits, and word by word across tokenisers."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.inference.alignment import align
from chainrule.inference.surprise import Surprise
from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.heat import HeatMaps
from chainrule.reports.blocks.table import Column, Table, decimals, signed
from chainrule.reports.section import Section
from chainrule.reports.text_scores import TestText, TextScores

LEAST, MOST = 250, 500
"""Characters of the passage."""

PLACES = 9
"""Passages from which one is chosen."""

COMPARED = 4
"""Runs that are compared word by word, best first."""


def passage(text: TestText) -> str:
    """Of some passages at equal distances, the one with the largest share of letters; all of a short text."""
    if len(text.whole) <= MOST:
        return text.whole
    places = [len(text.whole) * part // PLACES for part in range(PLACES)]
    found = [one for one in (_lines_at(text, place) for place in places) if one]  # nothing follows the last newline
    return max(found, key=lambda one: sum(map(str.isalpha, one)) / len(one))


def _lines_at(text: TestText, place: int) -> str:
    """Whole lines after a place, or a part of one long line."""
    begin = text.whole.find("\n", place, place + MOST) + 1 if place else 0
    begin = begin or place
    end = begin
    for line in text.whole[begin : begin + MOST].splitlines(keepends=True):
        if end - begin >= LEAST or end + len(line) > begin + MOST:
            break
        end += len(line)
    return text.whole[begin : end if end > begin else begin + MOST]


def sample_section(scores: Sequence[TextScores]) -> Section:
    """Heat maps of a passage, and a table of its words."""
    sample = passage(scores[0].text)
    surprises = [one.run.surprise(sample, top=3) for one in scores]
    names = [one.name for one in scores]
    blocks: list[Block] = [HeatMaps(names, surprises)]
    if len(scores) > 1:
        blocks.append(_words(names[:COMPARED], surprises[:COMPARED]))
    return Section(
        "sample",
        "A passage in bits",
        "Lines of the test text, read on their own: the darker, the more bits. Point at a token to see "
        "its probability, its rank and the best alternatives. Below, the same words under runs with different "
        "tokenisers: a word is a span that no token of any run crosses.",
        blocks,
    )


def _words(names: Sequence[str], surprises: Sequence[Surprise]) -> Table:
    aligned = align(surprises)
    rows = [
        [word.text.replace("\n", "↵"), *word.bits, word.bits[1] - word.bits[0]] for word in aligned.words if word.text
    ]
    rows.append(
        ["white space and lines", *aligned.formatting_bits, aligned.formatting_bits[1] - aligned.formatting_bits[0]]
    )
    rows.append(["all", *aligned.bits, aligned.bits[1] - aligned.bits[0]])
    last = Column("difference", signed(2), f"{names[1]} minus {names[0]}")
    columns = [Column("word", code=True), *(Column(name, decimals(2)) for name in names), last]
    return Table(columns, rows, f"Bits of each word; the difference is {names[1]} minus {names[0]}")
