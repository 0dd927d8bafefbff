"""Compare characters, jieba words and subwords for classical Chinese, in bits per byte.

Perplexity cannot compare the three, since their tokens differ; bits per byte can. With this little text, every unseen
poem has characters and words outside the vocabulary. They become `<unk>`, and bits per byte include their spelling; bpe
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
        pieces = " ".join(run.tokenizer.piece(token) for token in run.tokenizer.encode("白日依山盡，黃河入海流。"))
        print(
            f"{kind:<6} {measured.tokens:>4} tokens, {measured.oov:>3} unknown, "
            f"{measured.bits_per_byte:.3f} bits per byte   {pieces}"
        )


if __name__ == "__main__":
    main()
