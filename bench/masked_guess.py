"""Accuracy of bert on masked characters, against the guesses of a trigram model at the same positions.

    chainrule train tang/train.txt --tokenizer RUN --model ngram --order 3 --out NGRAM

trains the trigram model with the tokeniser of the run. It sees the true neighbours of a masked position, even where
they are masked for bert: the two before it, or two on either side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import Figure, arguments, begin, report

from chainrule.errors import ConfigError
from chainrule.evaluation.masked import mask_windows, sum_masked
from chainrule.evaluation.masked_baseline import guess
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load_for
from chainrule.runs.masked import MaskedRun


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("run", type=Path, help="run of a bert model")
    parser.add_argument("ngram", type=Path, help="run of an n-gram model with the same tokeniser")
    parser.add_argument("text", type=Path, help="test text")
    parser.add_argument("--candidates", type=int, default=500, help="words tried with both sides (default: 500)")
    options = begin(parser)
    run = load_for("fill", MaskedRun, options.run)
    ngram = load_for("score", LanguageModelRun, options.ngram)
    if run.tokenizer.fingerprint != ngram.tokenizer.fingerprint:
        raise ConfigError(f"{options.run} and {options.ngram} have different tokenisers; train both with the same one")
    tokens, protocol = run.open(options.text).tokens, run.protocol
    tokens = tokens[:2000] if options.quick else tokens
    batches = list(mask_windows(tokens, protocol.masking, protocol.length))
    masked = np.concatenate([batch.weights_BT.numpy().ravel() > 0 for batch in batches])
    positions = np.flatnonzero(masked)
    sums = sum_masked(run.model, batches)
    guesses = guess(ngram.model, np.asarray(tokens), positions, protocol.masking, candidates=options.candidates)
    ours = sums.correct / sums.tokens
    figures = [Figure("bert, top 5", sums.in_top / sums.tokens, "accuracy")]
    for name, guessed in (("two before", guesses.after_M), ("two on either side", guesses.between_M)):
        theirs = float(np.mean(guessed.numpy() == tokens[positions]))
        ratio = ours / theirs if theirs else None
        figures.append(Figure(f"bert, trigram from {name}", ours, "accuracy", theirs, ratio, at_least=1.0))
    report(figures, options, positions=len(positions), candidates=options.candidates)


if __name__ == "__main__":
    main()
