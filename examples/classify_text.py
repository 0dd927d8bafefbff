"""Train a text classifier on built-in data: docstrings of the standard library, labelled by the topic of their module.

The same on the command line: `chainrule train topics/train.tsv --valid topics/valid.tsv --model classifier --out
runs/topics`, `chainrule classify runs/topics` and `chainrule eval runs/topics topics/test.tsv`.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.labels import write_topics

files = write_topics(Path("topics"))

# Whole modules are held out, so the classifier has to generalise from the words of one module to another.
run = cr.train(
    files["train"],
    valid=files["valid"],
    model="classifier",
    epochs=6,
    out="runs/topics",
    settings={"training": {"lr": 0.003}, "model": {"embedding": 64}},
)
measured = run.evaluate(files["test"])
print(measured.show())
print(f"stopped at step {run.result['steps']}, best checkpoint at step {run.result['best_step']}")

for text in ("Return the square root of x.", "Wait until the thread has released its lock."):
    (best,) = run.classify([text], top=2)
    print(f"{text} -> {best[0].label} {best[0].probability:.2f}, {best[1].label} {best[1].probability:.2f}")
