"""Bits per token of a sentence, one row per model: the darker a token, the more it surprised the model.

    python examples/token_bits.py "The value of the argument is a string." runs/tour/ngram-order=1 runs/tour/lstm

Without arguments a unigram and a 5-gram model of the built-in text are counted first. Runs must have one tokeniser.
Writes `token_bits.svg`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import chainrule as cr

SENTENCE = "The value of the argument is a string."
LEFT, TOP, CELL, HEIGHT = 130, 60, 52, 40
DARKEST = 8.0  # bits


class Row(NamedTuple):
    """The tokens of the sentence and what they cost one model."""

    model: str
    pieces: list[str]
    bits: list[float]


def counted() -> list[str]:
    """Count two models of the built-in text -> their folders."""
    folders = []
    for order in (1, 5):
        folders.append(f"runs/tour/ngram-order={order}")
        cr.train("sample:english:train", valid="sample:english:valid", model="ngram", order=order, out=folders[-1])
    return folders


def measure(folder: str, sentence: str) -> Row:
    """The bits of every token: log p divided by -ln 2."""
    scored = cr.load(folder).score(sentence)
    return Row(Path(folder).name, scored.pieces, [-log_prob / math.log(2) for log_prob in scored.log_probs])


def picture(rows: list[Row]) -> str:
    """A table as SVG: a column per token, a row per model, the sum at the end of the row."""
    width, height = LEFT + CELL * (len(rows[0].pieces) + 2), TOP + HEIGHT * len(rows) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="22" font-size="15" font-weight="bold">Bits per token</text>',
    ]
    for column, piece in enumerate([*rows[0].pieces, "sum"]):
        parts.append(_text(LEFT + CELL * (column + 0.5), TOP - 10, piece))
    for number, row in enumerate(rows):
        y = TOP + HEIGHT * number
        parts.append(f'<text x="10" y="{y + 25}" font-size="13">{escape(row.model)}</text>')
        for column, bits in enumerate(row.bits):
            x, shade = LEFT + CELL * column, min(bits / DARKEST, 1.0)
            box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{HEIGHT}" stroke="white" fill="#0072b2"'
            parts.append(f'{box} fill-opacity="{shade:.2f}"/>')
            parts.append(_text(x + CELL / 2, y + 25, f"{bits:.1f}", "white" if shade > 0.6 else "black"))
        parts.append(_text(LEFT + CELL * (len(row.bits) + 0.5), y + 25, f"{sum(row.bits):.1f}"))
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: float, text: str, colour: str = "black") -> str:
    return f'<text x="{x:.0f}" y="{y}" font-size="13" text-anchor="middle" fill="{colour}">{escape(text)}</text>'


def main(sentence: str = SENTENCE, *folders: str) -> None:
    rows = [measure(folder, sentence) for folder in folders or counted()]
    for row in rows:
        print(f"{row.model:16} {sum(row.bits):6.1f} bits, {sum(row.bits) / len(sentence.encode()):.2f} per byte")
    Path("token_bits.svg").write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
