"""Count an n-gram model, mix it with a network and a cache, and take it out as ARPA and back in.

Mixing needs one vocabulary, so the network is trained with the tokeniser of the first run. An ARPA file holds the same
numbers, so a text has the same perplexity after the round trip; KenLM and others read it too.
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

    # Counted in one go, without a budget. Words that the text has only once become <unk>, so that it is learned.
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
    # The weights are those that make the validation text most likely; the test text has no part in them.
    mixture = cr.mix([ngram, lstm], valid="valid.txt", caches=["unigram"], out="runs/mixture")
    print("weights:", ", ".join(f"{name} {weight:.3f}" for name, weight in mixture.result["weights"].items()))
    for name, run in (("trigram", ngram), ("lstm", lstm), ("mixture", mixture)):
        print(f"{name:<8} perplexity {run.evaluate('test.txt').perplexity:.2f}")

    done = cr.export(ngram.folder.path, "trigram.arpa")
    again = cr.import_model("trigram.arpa", "runs/again")
    print(f"{done.bytes} bytes of ARPA; read again: perplexity {again.evaluate('test.txt').perplexity:.2f}")


if __name__ == "__main__":
    main()
