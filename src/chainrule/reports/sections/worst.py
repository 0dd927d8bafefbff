"""What a model finds hard: lines, words and single tokens with the most bits, and the words on which runs differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.table import Column, Table, decimals, percent, signed
from chainrule.reports.section import Section
from chainrule.reports.text_scores import TextScores

SHOWN = 12
"""Rows of each table."""

LONGEST = 160
"""Characters of a line that are shown."""

LEAST_BYTES = 20
"""A line with fewer bytes is not among the worst: one rare word would decide."""

LEAST_TIMES = 3
"""A word that occurs less often is not among those on which runs differ."""


def worst_section(scores: Sequence[TextScores]) -> Section:
    """Tables for the best run, which is the first, with the bits of the others beside them."""
    best = scores[0]
    blocks: list[Block] = [_lines(scores), _words(best), _tokens(best)]
    if len(scores) > 1:
        blocks += [_differences(best, other) for other in scores[1:4]]
    return Section(
        "worst",
        "What is hard",
        f"Lines, words and tokens that cost {best.name} the most, and words on which it differs from the other runs.",
        blocks,
    )


def _lines(scores: Sequence[TextScores]) -> Table:
    bits_P, bytes_P = scores[0].line_table.T
    rate_P = np.where(bytes_P >= LEAST_BYTES, bits_P / bytes_P, -1.0)
    worst = [int(line) for line in np.argsort(-rate_P, kind="stable")[:SHOWN] if rate_P[line] >= 0]
    rates = [one.line_table[:, 0] / one.line_table[:, 1] for one in scores]
    rows = [[line + 1, _cut(scores[0].text.lines[line]), *(float(rate[line]) for rate in rates)] for line in worst]
    columns = [Column("line"), Column("text", code=True), *(Column(one.name, decimals(2)) for one in scores)]
    return Table(columns, rows, f"Lines of at least {LEAST_BYTES} bytes with the most bits per byte")


def _words(best: TextScores) -> Table:
    names, number_N = np.unique(best.text.words, return_inverse=True)
    bits, times = np.bincount(number_N, best.word_bits), np.bincount(number_N)
    order = np.argsort(-bits, kind="stable")[:SHOWN].tolist()
    whole = float(best.word_bits.sum())
    rows = [
        [_shown(str(names[one])), int(times[one]), bits[one] / times[one], float(bits[one]), bits[one] / whole]
        for one in order
    ]
    columns = [
        Column("word", code=True),
        Column("times"),
        Column("bits each", decimals(2)),
        Column("bits in all", decimals(0)),
        Column("share", percent),
    ]
    return Table(columns, rows, f"Words that cost {best.name} the most in all")


def _tokens(best: TextScores) -> Table:
    order = np.argsort(-best.bits_N, kind="stable")[:SHOWN].tolist()
    whole, rows = best.text.whole, []
    for place in order:
        begin = int(best.begins_N[place])
        end = int(best.begins_N[place + 1]) if place + 1 < len(best.begins_N) else len(whole)
        context = whole[max(0, begin - 40) : begin].rpartition("\n")[2]
        rows.append([context, _shown(whole[begin:end]), float(best.bits_N[place])])
    columns = [Column("before", code=True), Column("token", code=True), Column("bits", decimals(2))]
    return Table(columns, rows, f"Tokens with the most bits under {best.name}, with the text before them")


def _differences(best: TextScores, other: TextScores) -> Table:
    names, number_N = np.unique(best.text.words, return_inverse=True)
    times = np.bincount(number_N)
    own, theirs = np.bincount(number_N, best.word_bits), np.bincount(number_N, other.word_bits)
    gain = np.where(times >= LEAST_TIMES, theirs - own, 0.0)
    order = np.argsort(-gain, kind="stable")
    chosen = [*order[: SHOWN // 2].tolist(), *order[::-1][: SHOWN // 2][::-1].tolist()]
    rows = [
        [_shown(str(names[one])), int(times[one]), own[one] / times[one], theirs[one] / times[one], float(gain[one])]
        for one in dict.fromkeys(chosen)
        if gain[one]
    ]
    columns = [
        Column("word", code=True),
        Column("times"),
        Column(f"bits, {best.name}", decimals(2)),
        Column(f"bits, {other.name}", decimals(2)),
        Column("saved in all", signed(1), f"bits that {best.name} saves over all occurrences"),
    ]
    return Table(columns, rows, f"Words on which {best.name} and {other.name} differ most, over all occurrences")


def _shown(word: str) -> str:
    return word.replace("\n", "↵") or "·"


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
