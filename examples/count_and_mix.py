"""Estimate an n-gram model, mix it with a network and a cache, export it as ARPA and import it again.

Mixing needs one vocabulary, so the network uses the tokeniser of the n-gram run. The ARPA file has the same numbers, so
the perplexity is the same after the round trip. KenLM and other tools read the file, too.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.texts import english_text

SMALL = {"model": {"embedding": 48, "hidden": 64}, "training": {"length": 24, "batch_size": 16, "lr": 0.01}}


def main() -> None:
    lines = english_text().splitlines(keepends=True)
    for name, begin, end in (("book", 0, 2400), ("valid", 4000, 4500), ("test", 4500, 5000)):
        Path(f"{name}.txt").write_text("".join(lines[begin:end]), encoding="utf-8")

    # Counting needs no budget. Words that occur only once become <unk>, so that the model learns its probability.
    ngram = cr.train("book.txt", valid="valid.txt", model="ngram", order=3, tokenizer="word", out="runs/trigram")
    print(f"{ngram.result['ngrams']} n-grams of 1, 2 and 3 words")

    lstm = cr.train(
        "book.txt",
        valid="valid.txt",
        model="lstm",
        tokenizer="runs/trigram/tokenizer.json",
        steps=250,
        seed=1,
        settings=SMALL,
        out="runs/lstm",
    )
    # The weights maximise the likelihood of the validation text; the test text is not used.
    mixture = cr.mix([ngram, lstm], valid="valid.txt", caches=["unigram"], out="runs/mixture")
    print("weights:", ", ".join(f"{name} {weight:.3f}" for name, weight in mixture.result["weights"].items()))
    for name, run in (("trigram", ngram), ("lstm", lstm), ("mixture", mixture)):
        print(f"{name:<8} perplexity {run.evaluate('test.txt').perplexity:.2f}")

    exported = cr.export(ngram.folder.path, "trigram.arpa")
    again = cr.import_model("trigram.arpa", "runs/again")
    print(f"{exported.bytes} bytes of ARPA; read again: perplexity {again.evaluate('test.txt').perplexity:.2f}")


if __name__ == "__main__":
    main()
