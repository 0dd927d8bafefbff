"""Train, measure, score and generate in Python, on text that every Python has.

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

    # Only the budget is given: tokeniser, width, dropout and batches follow from the text. The call made again would
    # find the run finished; with more steps it would go on from where this one ended.
    run = cr.train("book.txt", model="gru", steps=80, seed=1, out="runs/quickstart")

    measured = run.evaluate("test.txt")
    print(f"{measured.bits_per_byte:.3f} bits per byte, perplexity {measured.perplexity:.2f}")
    print(measured.protocol)

    likely, unlikely = run.score(["The following is an example.", "zqxj vkw qqq zzx jjq!"])
    print(f"log p of English {likely.log_prob:.1f}, of noise {unlikely.log_prob:.1f}")

    # A run is a folder; what `train` gives and what `load` finds there are the same.
    again = cr.load("runs/quickstart")
    for text_made in again.generate("The ", max_new_tokens=60, temperature=0.8, num_return_sequences=2, seed=1):
        print(repr(text_made.text))


if __name__ == "__main__":
    main()
