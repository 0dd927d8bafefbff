"""Bits per byte made visible: the file that `compress` writes has the size that `evaluate` says.

A header, and the rounding of codes to whole words, add some 60 bytes whatever the size of the text.
"""

from __future__ import annotations

from pathlib import Path

import chainrule as cr
from chainrule.text.samples.texts import english_text


def main() -> None:
    text = english_text()
    Path("book.txt").write_text(text[:60_000], encoding="utf-8")
    Path("test.txt").write_text(text[60_000:72_000], encoding="utf-8")
    # A word tokeniser hides rare words behind <unk> and loses white space; both are paid for, so the number is honest.
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
    done = run.compress("test.txt", "test.cr")
    run.decompress("test.cr", "back.txt")
    print(f"{measured.oov} of {measured.tokens} tokens are unknown words, spelled out in the code")
    print(f"evaluate says  {measured.bits_per_byte:.4f} bits per byte")
    print(f"the file has   {done.bits_per_byte:.4f} bits per byte ({done.compressed_bytes} of {done.bytes} bytes)")
    print("identical" if Path("back.txt").read_bytes() == Path("test.txt").read_bytes() else "different")


if __name__ == "__main__":
    main()
