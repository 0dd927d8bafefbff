"""Size of an n-gram model on disk, plain and with probabilities quantised to bytes, and the perplexity of both.

Sizes are of the model file; the first line of the output has the size of the vocabulary file. One megabyte is 10^6
bytes. The perplexity of the quantised model is compared with that of the plain one. --at-most sets targets.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness import Figure, arguments, begin, report

from chainrule.api import train
from chainrule.runs.language_model import LanguageModelRun

MEGABYTE = 1_000_000
FORMS = {"plain": False, "quantised": True}


def estimate_run(text: Path, valid: Path, place: Path, *, order: int, quantize: bool = False) -> LanguageModelRun:
    """Estimate a modified Kneser–Ney model of all words of a text; nothing is held out, since `valid` is given."""
    run = train(
        text,
        valid=valid,
        model="ngram",
        tokenizer="word",
        order=order,
        quantize=quantize,
        out=place,
        settings={"tokenizer": {"min_count": 1}},
    )
    assert isinstance(run, LanguageModelRun)
    return run


def megabytes(run: LanguageModelRun, file: str) -> float:
    """Return the size of a file of a run."""
    return (run.folder.path / file).stat().st_size / MEGABYTE


def size_figure(form: str, run: LanguageModelRun, target: float | None) -> Figure:
    """Return the size of the model and its target."""
    size, ngrams = megabytes(run, "model.safetensors"), sum(run.result["ngrams"])
    note = f"{size * MEGABYTE / ngrams:.2f} bytes per n-gram, {ngrams:,} n-grams"
    if target is None:
        return Figure(f"{form}, file", size, "MB", note=note)
    return Figure(f"{form}, file", size, "MB", target, size / target, at_most=1.0, note=note)


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("train", type=Path, help="training text of words between white space, one sentence per line")
    parser.add_argument("test", type=Path, help="text to measure perplexity on")
    parser.add_argument("--order", type=int, default=5, help="order of the model (default: %(default)s)")
    parser.add_argument("--at-most", type=float, nargs=2, metavar=("PLAIN", "QUANTISED"), help="targets in megabytes")
    options = begin(parser)
    targets = options.at_most or (None, None)
    order = 2 if options.quick else options.order
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        runs = {
            form: estimate_run(options.train, options.test, Path(place, form), order=order, quantize=quantize)
            for form, quantize in FORMS.items()
        }
        figures = [size_figure(form, run, target) for (form, run), target in zip(runs.items(), targets, strict=True)]
        measured = {form: run.evaluate(options.test).perplexity for form, run in runs.items()}
        words = megabytes(runs["plain"], "tokenizer.json")
    plain = measured["plain"]
    figures += [
        Figure(f"{form}, perplexity", found, "", plain, found / plain, note=f"{found:.3f}, {found - plain:+.3f}")
        for form, found in measured.items()
    ]
    report(figures, options, order=order, words=f"{words:.2f} MB", peer="target of the size; plain perplexity")


if __name__ == "__main__":
    main()
