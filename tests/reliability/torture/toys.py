"""Tiny data and trainings of every task, each a fraction of a second long."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import preloaded  # noqa: F401  # children are forked from this process
from chainrule import train

SIZES: dict[str, Any] = {"embedding": 8, "hidden": 8, "layers": 1}
BLOCK: dict[str, Any] = {"embedding": 8, "layers": 1, "heads": 2}
VECTORS = {"model": {"vector_size": 8, "min_count": 1}}
STEPS = 8


def write_data(folder: Path) -> None:
    """Small files of every format for training."""
    draw = random.Random(1)
    words = ["ab", "ba", "abba", "baab", "cab", "cb"]
    sentences = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(sentences) + "\n")
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in sentences))
    (folder / "labels.tsv").write_text("".join(f"{'xy'[line.count('c') % 2]}\t{line}\n" for line in sentences))
    tagged = ("\n".join(f"{word}\t{'C' if 'c' in word else 'O'}" for word in line.split()) for line in sentences)
    (folder / "tags.tsv").write_text("\n\n".join(tagged) + "\n")


def training(model: str, data: str, sizes: dict[str, Any], **options: Any) -> Callable[[Path, Path], object]:
    """A training that saves a checkpoint at every second step -> a function of the folders of data and run."""
    batch = {"max_tokens": 60} if data == "pairs.tsv" else {"batch_size": 4}
    values = {"device": "cpu", "validations": STEPS // 2, "log_steps": 1, **batch}

    def run(folder: Path, out: Path) -> object:
        settings = {"model": sizes, "training": values}
        given = {"steps": STEPS, "settings": settings, "progress": False, **options}
        return train(folder / data, model=model, out=out, **given)

    return run


def counting(model: str, **options: Any) -> Callable[[Path, Path], object]:
    """A training without gradients."""
    return lambda folder, out: train(folder / "text.txt", model=model, out=out, progress=False, **options)


char = partial(training, tokenizer="char")

classifier = partial(char, "classifier", "labels.tsv", {"encoder": "bag", "embedding": 8})

TRAININGS: dict[str, Callable[[Path, Path], object]] = {
    "lm lstm": char("lstm", "text.txt", SIZES),
    "lm transformer": char("transformer", "text.txt", BLOCK),
    "ngram": counting("ngram", tokenizer="char", order=3),
    "ngram --memory": counting("ngram", tokenizer="word", order=3, memory="1M"),
    "word2vec": counting("word2vec", tokenizer="word", epochs=2, settings=VECTORS),
    "translator": char("seq2seq-rnn", "pairs.tsv", SIZES),
    "masked bert": char("bert", "text.txt", {"width": 8, "inner": 8, "layers": 1, "heads": 2}),
    "classifier": classifier(),
    "tagger": training("tagger", "tags.tsv", {"embedding": 8, "hidden": 8}, tokenizer="word"),
}
"""One training per task, and two per task where checkpoints differ."""
