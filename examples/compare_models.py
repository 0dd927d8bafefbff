"""Train several models on the same budget and rank them by bits per byte.

Each model is an ordinary run in its own folder. Rerun an interrupted comparison to resume it.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.reports.leaderboard import markdown
from chainrule.text.samples.texts import english_text

MODELS = [  # MODEL or MODEL:OUTPUT, with options of the model in parentheses
    "ngram(order=3, smoothing=witten-bell)",
    "average(embedding=48)",
    "feedforward(embedding=48)",
    "lstm(embedding=48, hidden=64)",
    "lstm:hierarchical(embedding=48, hidden=64)",
]
SHORT = {"training": {"length": 32, "batch_size": 16}}  # for all models


def main() -> None:
    text = english_text()
    Path("book.txt").write_text(text[:60_000], encoding="utf-8")
    Path("test.txt").write_text(text[60_000:65_000], encoding="utf-8")
    rows = cr.compare(
        "book.txt",
        models=MODELS,
        mix=True,  # also mix the best n-gram model and the best network
        test="test.txt",
        steps=50,
        seed=1,
        out="runs/comparison",
        settings=SHORT,
    )
    print(markdown(rows), end="")
    print(rows[0].protocol)


if __name__ == "__main__":
    main()
