"""How well a model ends up with each output layer, after equal epochs: perplexity relative to the full softmax.

LSTM 2 × 200 on a text of words (the Penn Treebank is meant), every layer with the same seed, batches and schedule.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import Figure, arguments, begin, report

from chainrule.api import make_config
from chainrule.runs.language_model import Run
from chainrule.training.fit import fit

BARS = {"softmax": None, "adaptive": 1.1, "sampled": 1.1, "nce": 1.2, "hierarchical": 1.2}
MODEL = {"name": "lstm", "embedding": 200, "hidden": 200, "layers": 2}
TRAINING = {"batching": "stream", "batch_size": 20, "length": 35, "validations": 1, "save_seconds": 3600.0}


def perplexity(output: str, train: Path, valid: Path, budget: dict[str, float], threads: int, place: Path) -> float:
    """Validation perplexity of the model with one output layer."""
    values = {
        "data": {"train": [str(train)], "valid": [str(valid)]},
        "tokenizer": {"kind": "word"},
        "model": MODEL,
        "output": {"name": output},
        "training": {**TRAINING, **budget, "threads": threads},
    }
    run = Run(fit(make_config(None, values, {}), place / output).folder.path)
    return run.evaluate(valid).perplexity


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("train", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("--epochs", type=float, default=1.0, help="passes over the text (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="stop after so many steps, whatever the epochs")
    parser.add_argument("--outputs", default=",".join(BARS), help="layers to compare, softmax first")
    options = begin(parser)
    steps = options.steps or (3 if options.quick else None)
    budget = {"epochs": options.epochs} | ({"steps": steps} if steps else {})
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place:
        for name in options.outputs.split(","):
            found = perplexity(name, options.train, options.valid, budget, options.threads, Path(place))
            peer = figures[0].value if figures else found
            figures.append(Figure(name, found, "perplexity", peer, found / peer, at_most=BARS[name]))
    report(figures, options, peer=f"{figures[0].name}", epochs=options.epochs, steps=steps)


if __name__ == "__main__":
    main()
