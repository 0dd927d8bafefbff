"""Validation perplexity of each output layer after equal epochs, relative to the full softmax.

LSTM 2 × 200 on a text of words (for example the Penn Treebank); all layers have the same seed, batches and schedule.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import Figure, arguments, begin, report

from chainrule.runs.language_model import LanguageModelRun
from chainrule.training.fit import fit
from chainrule.training.request import make_config

TARGETS = {"softmax": None, "adaptive": 1.1, "sampled": 1.1, "nce": 1.2, "hierarchical": 1.2}
MODEL = {"name": "lstm", "embedding": 200, "hidden": 200, "layers": 2}
TRAINING = {"batching": "stream", "batch_size": 20, "length": 35, "validations": 1, "save_seconds": 3600.0}


def perplexity(output: str, train: Path, valid: Path, budget: dict[str, float], threads: int, place: Path) -> float:
    """Train with one output layer -> validation perplexity."""
    values = {
        "data": {"train": [str(train)], "valid": [str(valid)]},
        "tokenizer": {"kind": "word"},
        "model": MODEL,
        "output": {"name": output},
        "training": {**TRAINING, **budget, "threads": threads},
    }
    run = LanguageModelRun(fit(make_config(None, values, {}), place / output).folder.path)
    return run.evaluate(valid).perplexity


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("train", type=Path, help="training text")
    parser.add_argument("valid", type=Path, help="validation text")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs of training (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="stop after this number of steps at the latest")
    parser.add_argument(
        "--outputs", default=",".join(TARGETS), help="output layers to compare, softmax first (default: %(default)s)"
    )
    options = begin(parser)
    steps = options.steps or (3 if options.quick else None)
    budget = {"epochs": options.epochs} | ({"steps": steps} if steps else {})
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place:
        for name in options.outputs.split(","):
            found = perplexity(name, options.train, options.valid, budget, options.threads, Path(place))
            peer = figures[0].value if figures else found
            figures.append(Figure(name, found, "perplexity", peer, found / peer, at_most=TARGETS[name]))
    report(figures, options, peer=f"{figures[0].name}", epochs=options.epochs, steps=steps)


if __name__ == "__main__":
    main()
