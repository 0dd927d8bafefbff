"""Train, evaluate, score and generate in Python, on text that comes with Python.

`python examples/quickstart.py` writes book.txt, test.txt and runs/quickstart to the current folder.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.texts import english_text


def main() -> None:
    text = english_text()
    Path("book.txt").write_text(text[:100_000], encoding="utf-8")
    Path("test.txt").write_text(text[100_000:110_000], encoding="utf-8")

    # Only the budget is given; tokeniser, width, dropout and batches are chosen for the text. The same call again finds
    # the run finished; with more steps it resumes from here.
    run = cr.train("book.txt", model="gru", steps=80, seed=1, out="runs/quickstart")

    measured = run.evaluate("test.txt")
    print(f"{measured.bits_per_byte:.3f} bits per byte, perplexity {measured.perplexity:.2f}")
    print(measured.protocol)

    likely, unlikely = run.score(["The following is an example.", "zqxj vkw qqq zzx jjq!"])
    print(f"log p of English {likely.log_prob:.1f}, of noise {unlikely.log_prob:.1f}")

    # A run is a folder; `load` returns the same run as `train`.
    again = cr.load("runs/quickstart")
    for generated in again.generate("The ", max_new_tokens=60, temperature=0.8, num_return_sequences=2, seed=1):
        print(repr(generated.text))


if __name__ == "__main__":
    main()
