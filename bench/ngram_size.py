"""An n-gram model on disk, plain and with its probabilities quantised to bytes, and what the quantising costs.

The sizes are of the model's file; the list of words beside it is told in the first line. One megabyte is 10^6 bytes.
The perplexity of the quantised model is told against that of the plain one. With --at-most the sizes are held to bars.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness import Figure, arguments, begin, report

from chainrule.api import train
from chainrule.runs.language_model import Run

MEGABYTE = 1_000_000
FORMS = {"plain": False, "quantised": True}


def estimated(text: Path, valid: Path, place: Path, *, order: int, quantize: bool = False) -> Run:
    """A modified Kneser–Ney model of all words of a text: with another to validate on, nothing of it is held out."""
    return train(
        text,
        valid=valid,
        model="ngram",
        tokenizer="word",
        order=order,
        quantize=quantize,
        out=place,
        settings={"tokenizer": {"min_count": 1}},
    )


def megabytes(run: Run, file: str) -> float:
    """The size of one file of a run."""
    return (run.folder.path / file).stat().st_size / MEGABYTE


def size_figure(form: str, run: Run, bar: float | None) -> Figure:
    """What the model takes, beside what it may take."""
    size, ngrams = megabytes(run, "model.safetensors"), sum(run.result["ngrams"])
    note = f"{size * MEGABYTE / ngrams:.2f} bytes an n-gram, {ngrams:,} of them"
    if bar is None:
        return Figure(f"{form}, file", size, "MB", note=note)
    return Figure(f"{form}, file", size, "MB", bar, size / bar, at_most=1.0, note=note)


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("train", type=Path, help="a text of words between white space, a sentence a line")
    parser.add_argument("test", type=Path, help="the text to measure perplexity on")
    parser.add_argument("--order", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--at-most", type=float, nargs=2, metavar=("PLAIN", "QUANTISED"), help="bars in megabytes")
    options = begin(parser)
    bars = options.at_most or (None, None)
    order = 2 if options.quick else options.order
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        runs = {
            form: estimated(options.train, options.test, Path(place, form), order=order, quantize=quantize)
            for form, quantize in FORMS.items()
        }
        figures = [size_figure(form, run, bar) for (form, run), bar in zip(runs.items(), bars, strict=True)]
        measured = {form: run.evaluate(options.test).perplexity for form, run in runs.items()}
        words = megabytes(runs["plain"], "tokenizer.json")
    plain = measured["plain"]
    figures += [
        Figure(f"{form}, perplexity", found, "", plain, found / plain, note=f"{found:.3f}, {found - plain:+.3f}")
        for form, found in measured.items()
    ]
    report(figures, options, order=order, words=f"{words:.2f} MB", peer="the bar of a size; the plain perplexity")


if __name__ == "__main__":
    main()
