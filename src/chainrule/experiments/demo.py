"""The demonstration: a spread of models on the language reference that comes with Python, and two translators."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from chainrule.base.files import write_atomically
from chainrule.experiments.compare import Contender, Row, compare, parse_contender
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load_for
from chainrule.runs.translator import TranslatorRun
from chainrule.text.samples.phrases import write_phrase_pairs
from chainrule.training.fitting.fitting import TrainingListener

MODELS = (
    Contender("unigram", "ngram", options={"order": 1}),
    Contender("add-one trigram", "ngram", options={"order": 3, "smoothing": "additive"}),
    Contender("modified Kneser-Ney 5-gram", "ngram"),
    Contender("average", "average", options={"weights": "attention"}),
    *map(parse_contender, ("feedforward", "rnn", "gru", "lstm", "sr", "conv-attention", "transformer")),
)


def builtin_text() -> str:
    """Half a megabyte of English: the topics that `help()` knows."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name].strip("\n") + "\n" for name in sorted(topics))


def write_splits(folder: Path) -> dict[str, Path]:
    """The text in three files: eight tenths to train on, one to validate, one to test."""
    lines = builtin_text().splitlines(keepends=True)
    places = [0, len(lines) * 8 // 10, len(lines) * 9 // 10, len(lines)]
    paths = {name: folder / f"{name}.txt" for name in ("train", "valid", "test")}
    for path, (begin, end) in zip(paths.values(), pairwise(places), strict=True):
        text = "".join(lines[begin:end])
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
    return paths


TRANSLATORS = (
    Contender(
        "seq2seq-attention",
        "seq2seq-attention",
        options={"cell": "gru", "input_feeding": False, "dropout": 0.0},
        training={"max_tokens": 640},
    ),
    Contender(
        "seq2seq-transformer",
        "seq2seq-transformer",
        options={"encoder_layers": 2, "decoder_layers": 2, "feedforward": 256, "dropout": 0.0},
        training={"max_tokens": 1280},
    ),
)
TRIED = ("one thousand and five", "half past seven in the evening", "March 3, 1987")


def run_translation_demo(
    out: Path, seconds: float, listener: TrainingListener
) -> tuple[list[Row], list[tuple[str, str]]]:
    """Train two translators from English to German number phrases, dates and times; the rows, and some translations."""
    paths = write_phrase_pairs(out / "phrases", "en", "de")
    rows = compare(
        *paths["train"],
        models=TRANSLATORS,
        valid=paths["valid"],
        test=paths["test"],
        tokenizer="bpe",
        vocab_size=350,  # few pieces, so that a number is spelled in few ways
        minutes=seconds / 60,
        out=out / "translators",
        listener=listener,
        done=lambda row: listener.note(f"  {row.exact_match:.1%} exact match"),
    )
    best = load_for("translate", TranslatorRun, max(rows, key=lambda row: row.exact_match or 0).run)
    return rows, [(line, best.translate(line)) for line in TRIED]


def run_demo(out: Path, seconds: float, listener: TrainingListener) -> tuple[list[Row], str]:
    """Train and measure all; the rows, best first, and a sample from the best."""
    paths = write_splits(out)
    rows = compare(
        paths["train"],
        models=MODELS,
        valid=paths["valid"],
        test=paths["test"],
        tokenizer="bpe",
        vocab_size=1024,
        minutes=seconds / 60,
        out=out,
        mix=True,
        listener=listener,
        done=lambda row: listener.note(f"  {row.bits_per_byte:.3f} bits per byte"),
    )
    sample = load_for("generate", LanguageModelRun, rows[0].run).generate(
        "The ", max_new_tokens=120, temperature=0.7, top_p=0.9, seed=1
    )
    return rows, sample[0].text
