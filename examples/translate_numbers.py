"""Train a translator on pairs that are made on the spot: English numbers, dates, times and prices, to be written in digits.

Any two parallel files would do, or a .tsv or .jsonl of pairs; `chainrule translate runs/numbers` and
`chainrule eval runs/numbers phrases/test.en phrases/test.digits` do the same from the command line.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.phrases import write_phrase_pairs

COUNTS = {"train": 6000, "valid": 100, "test": 100}
PHRASES = ["two hundred and seven", "the third of March 1987", "", "half past seven in the evening"]


def main() -> None:
    files = write_phrase_pairs(Path("phrases"), "en", "digits", COUNTS)

    # Source and target share one vocabulary of characters. The run is what `cr.load("runs/numbers")` finds later on.
    run = cr.train(
        *files["train"],
        valid=files["valid"],
        model="seq2seq-attention",
        tokenizer="char",
        embedding=32,
        hidden=64,
        dropout=0.0,
        max_tokens=2048,
        steps=120,
        seed=1,
        settings={"training": {"lr": 0.01, "validations": 2}},
        out="runs/numbers",
    )
    measured = run.evaluate(files["test"], num_beams=2)
    print(f"BLEU {measured.bleu:.1f}, chrF {measured.chrf:.1f}, exact match {measured.exact_match:.0%}")
    print(f"{measured.token_accuracy:.0%} of the right characters are the most probable ones")

    # Lines may be of any number; they come back in order, an empty one empty.
    for phrase, (best, *others) in zip(PHRASES, run.translate_lines(PHRASES, num_return_sequences=2), strict=True):
        print(f"{phrase!r} -> {best.text!r}, or {[other.text for other in others]}")

    # Where it looked when it wrote the first digit of the year: one weight for each character of the phrase and its end.
    (date,) = run.translate_lines(PHRASES[1:2], attention=True)
    looked = date[0].looked
    strongest = max(range(len(looked.source)), key=looked.weights[0].__getitem__)
    print(f"{looked.target[0]!r} was written looking at character {strongest} of {len(looked.source)}")


if __name__ == "__main__":
    main()
