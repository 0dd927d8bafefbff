"""Several models at one budget in one table, ranked by bits per byte.

Each model is an ordinary run in its own folder, so a comparison that was broken off goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.demo import builtin_text
from chainrule.report.leaderboard import markdown

SMALL = {"model": {"embedding": 48}, "training": {"length": 32, "batch_size": 16}}


def main() -> None:
    text = builtin_text()
    Path("book.txt").write_text(text[:60_000], encoding="utf-8")
    Path("test.txt").write_text(text[60_000:65_000], encoding="utf-8")
    rows = cr.compare(
        "book.txt",
        # MODEL or MODEL:OUTPUT, with options of the model in brackets
        models=["ngram(order=3)", "average", "feedforward", "lstm(hidden=64)", "lstm:hierarchical(hidden=64)"],
        mix=True,
        test="test.txt",
        steps=50,
        seed=1,
        out="runs/comparison",
        settings=SMALL,
    )
    print(markdown(rows), end="")
    print(rows[0].protocol)


if __name__ == "__main__":
    main()
