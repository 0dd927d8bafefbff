"""Bits per token of a sentence, one row per model: the darker a token, the more it surprised the model.

    python examples/token_bits.py "The value of the argument is a string." runs/tour/ngram-order=1 runs/tour/lstm

Without arguments a unigram and a 5-gram model of the built-in text are counted first. Runs must have one tokeniser.
Writes `token_bits.svg`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import chainrule as cr
from chainrule.reports.charts.library import to_svg
from chainrule.reports.charts.token_bits import TokenBitsRow, token_bits

SENTENCE = "The value of the argument is a string."


def counted() -> list[str]:
    """Count two models of the built-in text -> their folders."""
    folders = []
    for order in (1, 5):
        folders.append(f"runs/tour/ngram-order={order}")
        cr.train("sample:english:train", valid="sample:english:valid", model="ngram", order=order, out=folders[-1])
    return folders


def measure(folder: str, sentence: str) -> TokenBitsRow:
    """The bits of every token: log p divided by -ln 2."""
    scored = cr.load(folder).score(sentence)
    return TokenBitsRow(Path(folder).name, scored.pieces, [-log_prob / math.log(2) for log_prob in scored.log_probs])


def main(sentence: str = SENTENCE, *folders: str) -> None:
    rows = [measure(folder, sentence) for folder in folders or counted()]
    for row in rows:
        print(f"{row.series:16} {sum(row.bits):6.1f} bits, {sum(row.bits) / len(sentence.encode()):.2f} per byte")
    Path("token_bits.svg").write_text(to_svg(token_bits(rows)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
