"""Classical Chinese by characters, by jieba words and by subwords, compared in bits per byte.

Perplexity cannot compare the three, since their tokens differ; bits per byte can. With so little text every unseen poem
has characters and words that the vocabulary lacks: these become `<unk>` and are paid for by their spelling, while bpe
spells them in bytes.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.texts import POEMS

TOKENIZERS = {"char": None, "jieba": None, "bpe": 700}
SMALL = {"model": {"embedding": 48, "hidden": 64, "dropout": 0.2}, "training": {"batch_size": 8, "length": 16}}


def main() -> None:
    lines = POEMS.splitlines(keepends=True)
    Path("poems.txt").write_text("".join(lines[:-6]), encoding="utf-8")
    Path("unseen.txt").write_text("".join(lines[-6:]), encoding="utf-8")
    for kind, vocab_size in TOKENIZERS.items():
        run = cr.train(
            "poems.txt",
            model="gru",
            valid="unseen.txt",
            tokenizer=kind,
            vocab_size=vocab_size,
            steps=40,
            seed=1,
            out=f"runs/poems-{kind}",
            settings=SMALL,
        )
        measured = run.evaluate("unseen.txt")
        cut = " ".join(run.tokenizer.piece(token) for token in run.tokenizer.encode("白日依山盡，黃河入海流。"))
        print(
            f"{kind:<6} {measured.tokens:>4} tokens, {measured.oov:>3} unknown, "
            f"{measured.bits_per_byte:.3f} bits per byte   {cut}"
        )


if __name__ == "__main__":
    main()
