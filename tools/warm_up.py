"""Compile the kernels once, so that no later command waits for them: small models of every kind are trained and used.

`make install` runs this. The compiled code is kept beside the sources.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import chainrule as cr
from chainrule import kenlm
from chainrule.text.samples.phrases import write_phrase_pairs
from chainrule.text.samples.texts import sample_text

SMALL = {"model": {"embedding": 16}}
TRANSLATOR = {"model": {"embedding": 16}, "training": {"valid_tokens": 500}, "data": {"lines": 200, "valid_lines": 20}}


def main() -> None:
    """Train and use one model for each kernel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
        text = folder / "text.txt"
        text.write_text(sample_text("sample:english:test"), encoding="utf-8")
        for tokenizer in ("word", "char"):
            run = cr.train(text, model="ngram", tokenizer=tokenizer, out=folder / f"ngram-{tokenizer}")
            run.generate("The ", max_new_tokens=5)
            run.evaluate(text)
            list(run.score_text(text))
        sentences, state = kenlm.Model(folder / "ngram-word"), kenlm.State()
        sentences.BeginSentenceWrite(state)
        sentences.BaseScore(state, "the", state)
        list(sentences.full_scores("the"))
        cr.train(text, model="word2vec", epochs=1, vector_size=16, out=folder / "word2vec", settings={})
        for model in ("lstm", "gru", "transformer", "at"):
            run = cr.train(text, model=model, tokenizer="char", steps=2, out=folder / model, settings=SMALL)
            run.generate("The ", max_new_tokens=5)
        pairs = write_phrase_pairs(folder / "phrases", "en", "de")
        for model in ("seq2seq-attention", "seq2seq-transformer", "hybrid", "fat"):
            run = cr.train(
                *pairs["train"], valid=pairs["valid"], model=model, steps=2, out=folder / model, settings=TRANSLATOR
            )
            run.translate("one hundred", max_new_tokens=5)
            if model == "hybrid":
                run.translate("one hundred", max_new_tokens=5, mode="draft", num_beams=1)
                run.translate("one hundred", max_new_tokens=5, mode="nar", num_beams=1)


if __name__ == "__main__":
    main()
