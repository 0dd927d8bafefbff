"""Train a translator in seconds on generated pairs: Chinese numbers, dates, times and prices, and digits.

Any two parallel files work, or a .tsv or .jsonl file of pairs. On the command line, use the run with
`chainrule translate runs/numbers` and `chainrule eval runs/numbers phrases/test.zh phrases/test.digits`.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.phrases import write_phrase_pairs

COUNTS = {"train": 6000, "valid": 100, "test": 100}
PHRASES = ["二百零七", "1987年3月3日", "", "下午三点半"]  # 207; 3 March 1987; half past three in the afternoon


def main() -> None:
    files = write_phrase_pairs(Path("phrases"), "zh", "digits", COUNTS)

    # Source and target share one vocabulary of characters. `cr.load("runs/numbers")` loads the run later.
    run = cr.train(
        *files["train"],
        valid=files["valid"],
        model="seq2seq-attention",
        tokenizer="char",
        cell="gru",
        embedding=32,
        hidden=64,
        input_feeding=False,
        dropout=0.0,
        steps=180,
        seed=1,
        max_tokens=1024,
        settings={"training": {"lr": 0.015, "validations": 2}},
        out="runs/numbers",
    )
    measured = run.evaluate(files["test"])
    print(f"exact match {measured.exact_match:.0%}, chrF {measured.chrf:.1f}, perplexity {measured.perplexity:.3f}")
    print(measured.protocol)

    # Translations are in the order of the lines, with the requested number per line; an empty line stays empty.
    for phrase, (best, *others) in zip(PHRASES, run.translate_lines(PHRASES, num_return_sequences=2), strict=True):
        print(f"{phrase!r} -> {best.text!r}, then {[other.text for other in others]}")

    # The source character with the largest attention weight for each character of the date.
    ((best, *_),) = run.translate_lines(PHRASES[1:2], attention=True)
    for piece, weights in zip(best.attention.target, best.attention.weights, strict=True):
        print(f"{piece}\t{best.attention.source[max(range(len(weights)), key=weights.__getitem__)]}")


if __name__ == "__main__":
    main()
