"""Training speed of the project's output layers for large vocabularies against its full softmax.

LSTM 2 × 200, batch 20, unroll 35, 50,000 words, all options at their defaults (including AdamW). The words are random
and Zipf-distributed; --text also measures the most frequent words of a real text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    Figure,
    FixedBatches,
    Project,
    alternate,
    arguments,
    begin,
    parameter_count,
    random_batches,
    report,
    speed,
    speed_up,
)

from chainrule.data.store import open_store
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import train_tokenizer
from chainrule.types import Vocabulary

VOCABULARY, LAYERS, WIDTH, ROWS, LENGTH, BATCHES = 50_000, 2, 200, 20, 35, 16
LAYER_NAMES = ("sampled", "nce", "hierarchical", "adaptive")
LR = 2e-3

Tokens = np.ndarray[Any, Any]


def zipf(size: int, vocabulary: int) -> Tokens:
    """Return random tokens with frequencies proportional to 1 / rank."""
    prob_V = 1.0 / np.arange(1, vocabulary + 1)
    return np.random.default_rng(1).choice(vocabulary, size=size, p=prob_V / prob_V.sum())


def words_of(path: Path, vocabulary: int) -> tuple[Tokens, Vocabulary]:
    """Return the tokens of a text and its vocabulary."""
    texts = open_texts([path])
    tokenizer = train_tokenizer("word", texts, vocab_size=vocabulary, min_count=1)
    store = open_store(texts, tokenizer)
    return np.asarray(store.tokens[: _needed()]), Vocabulary(tokenizer.vocab_size, tokenizer.eos, store.counts_V)


def _needed() -> int:
    return ROWS * (BATCHES * LENGTH + 1)


def project(output: str, tokens: Tokens, vocabulary: Vocabulary) -> Project:
    values = {
        "model": {"name": "lstm", "embedding": WIDTH, "hidden": WIDTH, "layers": LAYERS},
        "output": {"name": output},
        "training": {"lr": LR, "batching": "stream"},
    }
    return Project(values, vocabulary, FixedBatches(random_batches(tokens, BATCHES, ROWS, LENGTH)))


def measure(words: str, tokens: Tokens, vocabulary: Vocabulary, count: int, repeats: int) -> list[Figure]:
    """Compare every layer with the full softmax on one text."""
    projects = {name: project(name, tokens, vocabulary) for name in ("softmax", *LAYER_NAMES)}
    contestants: dict[str, Callable[[], object]] = {name: partial(one.steps, count) for name, one in projects.items()}
    times = alternate(contestants, repeats)
    each = count * ROWS * LENGTH
    return [
        Figure(
            f"{name}, {words}",
            speed(times, name, each),
            "tokens/s",
            speed(times, "softmax", each),
            speed_up(times, name, "softmax"),
            at_least=4.0,
            note=f"{parameter_count(projects[name].model):,} parameters",
        )
        for name in LAYER_NAMES
    ]


def main() -> None:
    parser = arguments(__doc__, repeats=7)
    parser.add_argument("--text", type=Path, help="text with a large vocabulary, measured as well")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="number of words (default: %(default)s)")
    options = begin(parser)
    count = 1 if options.quick else 4
    # The counts are of a longer text than the training text, so that no layer knows which words occur.
    tokens = zipf(100 * _needed(), options.vocabulary)
    vocabulary = Vocabulary(options.vocabulary, 0, np.bincount(tokens, minlength=options.vocabulary))
    figures = measure("random", tokens[: _needed()], vocabulary, count, options.repeats)
    if options.text:
        figures += measure(options.text.name, *words_of(options.text, options.vocabulary), count, options.repeats)
    report(figures, options, peer="full softmax")


if __name__ == "__main__":
    main()
