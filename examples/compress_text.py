"""Compress a text with a language model: the file has the size that `evaluate` reports in bits per byte.

The header and the rounding of codes to whole words add about 60 bytes, whatever the size of the text.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.texts import english_text


def main() -> None:
    text = english_text()
    Path("book.txt").write_text(text[:60_000], encoding="utf-8")
    Path("test.txt").write_text(text[60_000:72_000], encoding="utf-8")
    # A word tokeniser replaces rare words by <unk> and loses white space; bits per byte include the cost of both.
    run = cr.train(
        "book.txt",
        model="lstm",
        tokenizer="word",
        vocab_size=800,
        steps=40,
        seed=1,
        out="runs/compressor",
        settings={"model": {"embedding": 48, "hidden": 64}},
    )
    measured = run.evaluate("test.txt")
    compressed = run.compress("test.txt", "test.cr")
    run.decompress("test.cr", "back.txt")
    print(f"{measured.oov} of {measured.tokens} tokens are unknown words, which are spelled out")
    print(f"evaluate reports  {measured.bits_per_byte:.4f} bits per byte")
    size = f"{compressed.compressed_bytes} of {compressed.bytes} bytes"
    print(f"the file has      {compressed.bits_per_byte:.4f} bits per byte ({size})")
    print("identical" if Path("back.txt").read_bytes() == Path("test.txt").read_bytes() else "different")


if __name__ == "__main__":
    main()
