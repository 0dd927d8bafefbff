"""How often bert tells a hidden character, against what an n-gram model of order 3 guesses for the same places.

    chainrule train tang/train.txt --tokenizer RUN --model ngram --order 3 --out NGRAM

makes the n-gram model with the tokens of the run. It is given the true neighbours of a hidden place even where these
are hidden from bert: the two before it, or two on either side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import Figure, arguments, begin, report

from chainrule.api import load
from chainrule.errors import ConfigError
from chainrule.evaluation.masked import mask_windows, sum_masked
from chainrule.evaluation.masked_baseline import guess
from chainrule.runs.masked import load_masked


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("run", type=Path, help="a run of bert")
    parser.add_argument("ngram", type=Path, help="a run of ngram with the same tokens")
    parser.add_argument("text", type=Path)
    parser.add_argument("--candidates", type=int, default=500, help="words weighed from both sides (default: 500)")
    options = begin(parser)
    run, ngram = load_masked(options.run), load(options.ngram)
    if run.tokenizer.fingerprint != ngram.tokenizer.fingerprint:
        raise ConfigError(f"{options.run} and {options.ngram} have different tokens; train both with one tokenizer")
    tokens, measure = run.open(options.text).tokens, run.measure
    tokens = tokens[:2000] if options.quick else tokens
    batches = list(mask_windows(tokens, measure.masking, measure.length))
    hidden = np.concatenate([batch.weights_BT.numpy().ravel() > 0 for batch in batches])
    places = np.flatnonzero(hidden)
    sums = sum_masked(run.model, batches)
    guesses = guess(ngram.model, np.asarray(tokens), places, measure.masking, candidates=options.candidates)
    ours = sums.correct / sums.tokens
    figures = [Figure("bert, among the first five", sums.in_top / sums.tokens, "accuracy")]
    for name, guessed in (("from the two before", guesses.after_M), ("from two on either side", guesses.between_M)):
        theirs = float(np.mean(guessed.numpy() == tokens[places]))
        figures.append(Figure(f"bert against the guess {name}", ours, "accuracy", theirs, ours / theirs, at_least=1.0))
    report(figures, options, places=len(places), candidates=options.candidates)


if __name__ == "__main__":
    main()
