"""Initial embeddings from word vectors: which rows, which length, which models, and the messages."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import letter_pairs, pairs_text, small_model, small_options, small_translator, write_pairs
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.inference.word_table import WordTable
from chainrule.text.tokenizers.word import WordTokenizer
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.init.embedding import match_tokens, read_table, start_from, width_of, with_width

WORDS = ["the", "Cat", "sat", "cat", "mouse"]
TOKENIZER = WordTokenizer(
    ["the", "cat", "SAT", "dog", "▁mouse", "a", "b", "c", "d", "e", "f"]
)  # 13 with the two others


def vectors(width: int = 8) -> np.ndarray:
    return 7 * np.random.default_rng(0).normal(size=(len(WORDS), width)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of vectors eight wide."""
    path = tmp_path / "vectors.txt"
    rows = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, vectors(), strict=True))
    path.write_text(f"{len(WORDS)} 8\n" + "".join(rows))
    return path


def test_exact_spellings_are_found_before_other_cases() -> None:
    found = match_tokens(TOKENIZER, WordTable(WORDS, vectors()))
    assert {TOKENIZER.piece(token): WORDS[place] for token, place in found.items()} == {
        "the": "the",
        "cat": "cat",
        "SAT": "sat",
        "▁mouse": "mouse",
    }
    table = WordTable(["<eos>", "<unk>", "Dog", "dog", "DOG"], np.eye(5, dtype=np.float32))
    assert match_tokens(WordTokenizer(["dOg"]), table) == {
        2: 2
    }  # of other cases the first; special tokens are not looked up


@pytest.mark.parametrize("name", ["lstm", "transformer", "bert", "elmo"])
def test_known_rows_start_from_the_vectors_and_others_stay(file: Path, name: str) -> None:
    options: dict[str, Any] = {"positions": 12} if name == "bert" else {}
    model = small_model(name, **({"width": 8} | options if name == "bert" else options))
    table = model.embedding if hasattr(model, "embedding") else model.encoder.word_table
    before_VD, notes = table.weight.detach().clone(), []
    start_from(model, str(file), TOKENIZER, note=notes.append)
    after_VD, rows = table.weight.detach(), [2, 3, 4, 6]  # the, cat, SAT, ▁mouse
    others = [row for row in range(len(before_VD)) if row not in rows]
    torch.testing.assert_close(after_VD[others], before_VD[others], atol=0, rtol=0)
    given_KD = torch.from_numpy(vectors()[[0, 3, 2, 4]])
    ratios = after_VD[rows] / given_KD
    torch.testing.assert_close(ratios, ratios.mean().expand_as(ratios))  # one factor for all
    naive = [float((part**2).mean()) for part in (before_VD[rows], after_VD[rows])]
    assert naive[1] == pytest.approx(naive[0], rel=1e-5)  # and as long as before, on average
    assert notes == [f"4 of 11 tokens (36.4%) start from the vectors of {file}"]


def test_a_tied_output_starts_from_them_too(file: Path) -> None:
    model = small_model("lstm", tied=True)
    start_from(model, str(file), TOKENIZER)
    assert model.output.weight_VD is model.embedding.weight


def test_the_bag_of_a_classifier(file: Path) -> None:
    model = small_model("classifier", labels=("x", "y"), embedding=8)
    start_from(model, str(file), TOKENIZER)
    row_D = model.features.encoder.word_table.weight[2].detach()
    assert float(torch.nn.functional.cosine_similarity(row_D, torch.from_numpy(vectors()[0]), dim=0)) > 0.9999


def test_both_tables_of_a_translator(file: Path) -> None:
    model, notes = small_translator("seq2seq-transformer", separate=True), []
    source = WordTokenizer(["dog", "mouse", *"abcdefghijk"])
    before_VD = model.source_embedding.weight.detach().clone()
    start_from(model, str(file), TOKENIZER, source, notes.append)
    assert notes == [
        f"4 of 11 tokens of the target (36.4%) start from the vectors of {file}",
        f"1 of 13 tokens of the source (7.7%) start from the vectors of {file}",
    ]
    changed = (model.source_embedding.weight != before_VD).any(1).nonzero().flatten().tolist()
    assert changed == [3]
    shared, notes = small_translator("seq2seq-transformer"), []
    start_from(shared, str(file), TOKENIZER, None, notes.append)
    assert notes == [f"4 of 11 tokens (36.4%) start from the vectors of {file}"]


def test_the_width_is_that_of_the_vectors_unless_it_is_given(file: Path) -> None:
    notes: list[str] = []
    config = RunConfig.model_validate({"model": {"name": "lstm", "hidden": 4}, "init_embedding": str(file)})
    assert with_width(config, notes.append).model.options == {"hidden": 4, "embedding": 8}
    assert notes == [f"model.embedding = 8, the width of the vectors of {file}"]
    given = RunConfig.model_validate({"model": {"name": "lstm", "embedding": 9}, "init_embedding": str(file)})
    assert with_width(given) is given
    bert = RunConfig.model_validate({"model": {"name": "bert"}, "init_embedding": str(file)})
    assert with_width(bert).model.options == {"width": 8}
    assert with_width(RunConfig()) == RunConfig()


def test_packed_files(file: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "vectors.txt.gz", "wb") as packed:
        packed.write(file.read_bytes())
    assert width_of(str(tmp_path / "vectors.txt.gz")) == 8
    np.testing.assert_array_equal(read_table(str(tmp_path / "vectors.txt.gz")).vectors_VD, vectors())


def test_vectors_that_do_not_fit_are_refused(file: Path, tmp_path: Path) -> None:
    def sentence(call: Any, *arguments: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            call(*arguments)
        return str(caught.value)

    assert sentence(start_from, small_model("lstm", embedding=6), str(file), TOKENIZER) == (
        f"the vectors of {file} have width 8, but those of the model have width 6; leave the model's width out, or set "
        "it to 8"
    )
    assert sentence(start_from, small_model("lstm"), str(file), WordTokenizer(list("abcdefghijk"))) == (
        f"none of the 13 tokens of the model is a word of {file}; use the tokeniser with which the vectors were "
        "trained, for example --tokenizer word"
    )
    assert sentence(start_from, small_model("ngram"), str(file), TOKENIZER) == (
        "Ngram has no embedding to initialise; leave init_embedding out"
    )
    counted = RunConfig.model_validate({"model": {"name": "ngram"}, "init_embedding": str(file)})
    assert sentence(with_width, counted) == ("ngram has no embedding to initialise; leave init_embedding out")
    assert sentence(read_table, str(tmp_path / "none.txt")) == (
        f"init_embedding is {tmp_path / 'none.txt'}, which does not exist; give a run, or a file of vectors (.txt or "
        ".bin)"
    )
    (tmp_path / "text.txt").write_text("no vectors here\n")
    assert sentence(width_of, str(tmp_path / "text.txt")) == (
        f"{tmp_path / 'text.txt'} does not begin with the number and the width of its vectors, as a word2vec file "
        "does; give a word2vec file, or a run"
    )


def test_trainings_start_from_a_run(tmp_path: Path) -> None:
    """End to end: a language model's embedding as that of another model and of a translator."""
    text = tmp_path / "text.txt"
    text.write_text(pairs_text(60))
    training = {"batch_size": 4, "device": "cpu", "lr": 1e-9}  # so small that the weights do not change
    shape = {key: value for key, value in small_options("lstm").items() if key != "embedding"}
    settings: dict[str, Any] = {"model": {**shape, "embedding": 6}, "training": training}
    first = cr.train(text, model="lstm", tokenizer="char", steps=1, out=tmp_path / "first", settings=settings)
    notes: list[str] = []
    options: dict[str, Any] = {
        "settings": {"model": shape, "training": training},
        "steps": 1,
        "init_embedding": tmp_path / "first",
        "listener": TrainingListener(note=notes.append),
    }
    second = cr.train(text, model="gru", tokenizer="char", seed=2, out=tmp_path / "second", **options)
    assert second.config.model.options["embedding"] == 6
    assert f"10 of 10 tokens (100.0%) start from the vectors of {tmp_path / 'first'}" in notes
    ours, theirs = (run.model.embedding.weight[2:].detach() for run in (second, first))  # without <unk> and <eos>
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm(), atol=1e-5, rtol=1e-4)
    tiny = {key: value for key, value in small_options("seq2seq-rnn").items() if key != "embedding"}
    options["settings"] = {"model": tiny, "training": {"device": "cpu"}}
    pairs = write_pairs(tmp_path, letter_pairs(40))
    cr.train(*pairs, model="seq2seq-rnn", tokenizer="char", out=tmp_path / "third", **options)
    assert notes[-1] == f"8 of 8 tokens (100.0%) start from the vectors of {tmp_path / 'first'}"
