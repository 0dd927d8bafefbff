"""Training on pairs: held-out and filtered pairs, resuming, starting from another run, selection of the checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ChainruleError
from chainrule.runs.translator import TranslatorRun
from chainrule.text.readers import lines_in
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.loop import Update

SMALL: dict[str, Any] = {"embedding": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 16}
TRAINING: dict[str, Any] = {"max_tokens": 64, "optimizer": "adamw", "lr": 0.01, "validations": 2, "log_steps": 5}


def train(*paths: Path, out: Path, steps: int = 2, note: list[str] | None = None, **given: Any) -> TranslatorRun:
    """A small Transformer; `given` are options of `train`; sections of settings are merged into the defaults."""
    settings = {"model": {"context": 24, "dropout": 0.0, **SMALL}, "training": dict(TRAINING)}
    for section in ("data", "tokenizer_settings", "training", "shape"):
        name = {"tokenizer_settings": "tokenizer", "shape": "model"}.get(section, section)
        settings[name] = {**settings.get(name, {}), **given.pop(section, {})}
    options = {"model": "seq2seq-transformer", "tokenizer": "char", "device": "cpu", **given}
    if "listener" not in options:
        options["listener"] = TrainingListener(note=[].append if note is None else note.append)
    run = cr.train(*paths, out=out, steps=steps, settings=settings, **options)
    assert isinstance(run, TranslatorRun)
    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, letter_pairs(200), "train")
    write_pairs(folder, letter_pairs(20, seed=5), "valid")
    return folder


@pytest.fixture(scope="module")
def paths(place: Path) -> tuple[Path, Path]:
    return place / "train.src", place / "train.tgt"


def metrics(run: TranslatorRun) -> list[dict[str, Any]]:
    """The log without times."""
    records = [json.loads(line) for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def everything(run: TranslatorRun) -> dict[str, torch.Tensor]:
    """The weights to use, and all that is in the last checkpoint."""
    checkpoint = run.folder.read_checkpoint()
    assert checkpoint is not None
    return {**run.folder.read_weights(), **{f"checkpoint/{name}": t for name, t in checkpoint.tensors.items()}}


def message_of(*paths: Path, **options: Any) -> str:
    """The message of a training that is refused."""
    with pytest.raises(ChainruleError) as error:
        train(*paths, **options)
    return str(error.value)


# Data


def test_the_last_pairs_are_held_out_where_none_are_given(paths: tuple[Path, Path], tmp_path: Path) -> None:
    run = train(*paths, out=tmp_path / "run", data={"held_out": 0.0625}, training={"valid_pairs": 5})
    held_out = run.held_out_pairs()
    assert list(lines_in(held_out.source)) == paths[0].read_text().splitlines()[-13:]
    assert list(lines_in(held_out.target)) == paths[1].read_text().splitlines()[-13:]
    assert run.evaluate_held_out(num_beams=1).sentences == 13
    assert run.validation().sentences == 5  # type: ignore[union-attr]
    # All others are trained on: in one epoch every target once.
    tokens = sum(map(len, paths[1].read_text().splitlines(keepends=True)[:-13]))
    whole = train(*paths, out=tmp_path / "whole", steps=None, epochs=1, data={"held_out": 0.0625})  # type: ignore[arg-type]
    assert whole.result["tokens"] == tokens


def test_pairs_given_for_validation_are_used(paths: tuple[Path, Path], place: Path, tmp_path: Path) -> None:
    valid = [place / "valid.src", place / "valid.tgt"]
    run = train(*paths, out=tmp_path / "run", valid=valid)
    validated = {record["step"]: record["valid_loss"] for record in metrics(run) if "valid_loss" in record}
    loss = validated[run.result["best_step"]]
    assert run.evaluate(valid, num_beams=1).cross_entropy == pytest.approx(loss, rel=1e-5)
    assert run.evaluate_held_out(num_beams=1) == run.evaluate(valid, num_beams=1)


def test_a_table_of_pairs_trains_as_two_files_do(paths: tuple[Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "train.tsv"
    sources, targets = (path.read_text().splitlines() for path in paths)
    table.write_text("".join(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)))
    records = tmp_path / "train.jsonl"
    pairs = zip(sources, targets, strict=True)
    records.write_text("".join(json.dumps({"from": source, "to": target}) + "\n" for source, target in pairs))
    one = train(*paths, out=tmp_path / "one")
    other = train(table, out=tmp_path / "other")
    third = train(records, out=tmp_path / "third", data={"source_field": "from", "target_field": "to"})
    assert metrics(one) == metrics(other) == metrics(third)
    assert one.evaluate(paths, num_beams=1) == other.evaluate(table, num_beams=1)


def test_filtered_pairs_are_reported(place: Path, tmp_path: Path) -> None:
    good = letter_pairs(40)
    mixed = write_pairs(tmp_path, [("ab", ""), ("a" * 30, "A"), ("a" * 12, "A"), ("a", "A" * 6), *good], "mixed")
    notes: list[str] = []
    train(*mixed, out=tmp_path / "run", note=notes, data={"max_length": 11, "max_ratio": 5})
    assert notes == [
        "tokeniser: char",
        "37 pairs; left out: 1 with an empty side, 2 too long, 1 of too unequal lengths",
        notes[2],
    ]
    assert notes[2].startswith("validation: 3 pairs held out; 0.00% of ")
    notes.clear()
    # Pairs that the model cannot read are always dropped.
    train(*mixed, out=tmp_path / "other", note=notes, data={"max_length": 1000})
    assert notes[1] == "39 pairs; left out: 1 with an empty side, 1 too long"


def test_a_prefix_precedes_every_source(paths: tuple[Path, Path], tmp_path: Path) -> None:
    run = train(*paths, out=tmp_path / "run", data={"prefix": "reverse: "}, shape={"context": 32})
    assert run.tokenizer.decode(run.subject.encode_source("ab")) == "reverse: ab"
    by_hand = write_pairs(tmp_path, [(f"reverse: {source}", target) for source, target in letter_pairs(200)], "by-hand")
    same = train(*by_hand, out=tmp_path / "same", shape={"context": 32})
    assert metrics(run) == metrics(same)
    assert run.translate("abc") == same.translate("reverse: abc")
    assert run.evaluate(paths, num_beams=1).bleu == same.evaluate(by_hand, num_beams=1).bleu


def test_one_pair_cannot_be_held_out(tmp_path: Path) -> None:
    one = write_pairs(tmp_path, [("ab", "BA")])
    assert message_of(*one, out=tmp_path / "run") == (
        "there is one pair only, so none can be held out; give more pairs, or others with --valid."
    )


# Vocabularies


def test_each_side_may_have_its_own_vocabulary(paths: tuple[Path, Path], tmp_path: Path) -> None:
    notes: list[str] = []
    options: dict[str, Any] = {"tokenizer_settings": {"joint": False}, "steps": 20}
    run = train(*paths, out=tmp_path / "run", note=notes, **options)
    assert notes[:2] == [
        "tokeniser of the source: char",
        "tokeniser of the target: char",
    ]
    assert (tmp_path / "run" / "source" / "tokenizer.json").exists()
    assert run.source_tokenizer.decode(run.subject.encode_source("abX")) == "ab<unk>"
    assert run.tokenizer.encode("Aa")[1] == run.tokenizer.unk
    loaded = cr.load(tmp_path / "run")
    assert isinstance(loaded, TranslatorRun)
    assert loaded.source_tokenizer.fingerprint == run.source_tokenizer.fingerprint != run.tokenizer.fingerprint
    lines = ["abc", "d", "ba"]
    assert list(loaded.translate_lines(lines)) == list(run.translate_lines(lines))
    (best,) = next(loaded.translate_lines(["abc"], attention=True))
    assert best.attention is not None
    assert best.attention.source == ["a", "b", "c", "<eos>"]
    signature = run.folder.read_signature()
    assert signature["source_tokenizer"] == f"char#{run.source_tokenizer.fingerprint}"


# Resuming


def test_a_stopped_training_ends_like_an_uninterrupted_one(paths: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 60, "shape": {"dropout": 0.2}, "training": {"select": "bleu", "valid_pairs": 4}}
    unbroken = train(*paths, out=tmp_path / "unbroken", **options)
    stops = []

    def stop(update: Update) -> None:
        if update.state.step in (15, 45) and update.state.step not in stops:
            stops.append(update.state.step)
            os.kill(os.getpid(), signal.SIGINT)

    for finished in (False, False, True):
        broken = train(*paths, out=tmp_path / "broken", listener=TrainingListener(update=stop), **options)
        assert bool(broken.result) is finished
    assert stops == [15, 45]
    ours, theirs = everything(unbroken), everything(broken)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert metrics(unbroken) == metrics(broken)


def test_a_training_resumes_only_with_the_same_pairs(tmp_path: Path) -> None:
    paths = write_pairs(tmp_path, letter_pairs(40))
    train(*paths, out=tmp_path / "run")
    write_pairs(tmp_path, [*letter_pairs(40)[:-1], ("a", "B")])
    assert message_of(*paths, out=tmp_path / "run", steps=4) == (
        f"the training text has changed since {tmp_path / 'run'} was begun; restore the old text to resume, or "
        "choose another --out"
    )


# Starting from another run


@pytest.fixture(scope="module")
def start(paths: tuple[Path, Path], place: Path) -> TranslatorRun:
    return train(*paths, out=place / "start", steps=30, output="adaptive", shape={"norm": "post"})


def begun(*paths: Path, init: Path, out: Path, **options: Any) -> Any:
    """A training that starts from a run and changes it very little."""
    settings = {"training": {**TRAINING, "lr": 1e-12, "validations": 1}}
    return cr.train(*paths, init=init, out=out, steps=1, device="cpu", settings=settings, **options)


def test_a_run_starts_from_tokeniser_model_and_weights_of_another(
    start: TranslatorRun, paths: tuple[Path, Path], place: Path, tmp_path: Path
) -> None:
    # Other pairs with other letter frequencies: the output layer keeps the counts of the first training.
    others = write_pairs(
        tmp_path, [(source + "ddddd", "D" * 5 + target) for source, target in letter_pairs(30, seed=8)]
    )
    for number, given in enumerate((paths, others)):
        run = begun(*given, init=start.folder.path, out=tmp_path / str(number))
        assert run.config.model == start.config.model
        assert run.config.output == start.config.output
        assert run.tokenizer.fingerprint == start.tokenizer.fingerprint
        ours, theirs = run.folder.read_weights(), start.folder.read_weights()
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=1e-5)
        valid = [place / "valid.src", place / "valid.tgt"]
        assert run.evaluate(valid, num_beams=1).cross_entropy == pytest.approx(
            start.evaluate(valid, num_beams=1).cross_entropy, rel=1e-5
        )


def test_a_start_that_does_not_fit_is_refused(start: TranslatorRun, paths: tuple[Path, Path], tmp_path: Path) -> None:
    init, out = start.folder.path, tmp_path / "run"

    def refusal(**options: Any) -> str:
        with pytest.raises(ChainruleError) as error:
            begun(*paths, out=out, **{"init": init, **options})
        assert not out.exists()
        return str(error.value)

    assert refusal(model="seq2seq-rnn") == (
        f"--init {init} holds the model seq2seq-transformer, but --model is seq2seq-rnn; leave --model out, or --init"
    )
    assert refusal(tokenizer="bpe") == (
        f"--init {init} has the tokeniser char, to which its weights belong, but --tokenizer is bpe; leave --tokenizer "
        "out, or --init"
    )
    assert refusal(embedding=16) == (
        f"the weights of {init} do not fit this seq2seq-transformer; start from a run of the same shape, without "
        "changing its model options"
    )
    nowhere = tmp_path / "nowhere"
    assert refusal(init=nowhere) == f"no run at {nowhere}; train one with: chainrule train TEXT --out {nowhere}"


# Selection


def test_the_best_weights_may_be_those_with_the_best_bleu(paths: tuple[Path, Path], tmp_path: Path) -> None:
    words = [(" ".join(source), " ".join(target)) for source, target in letter_pairs(150, longest=4)]
    spaced = write_pairs(tmp_path, words, "words")
    run = train(*spaced, out=tmp_path / "run", steps=60, training={"select": "bleu", "validations": 6, "lr": 0.02})
    validations = [record for record in metrics(run) if "valid_bleu" in record]
    assert [record["step"] for record in validations] == [10, 20, 30, 40, 50, 60]
    best = max(validations, key=lambda record: record["valid_bleu"])
    assert run.result["best_step"] == best["step"]
    assert run.evaluate_held_out(num_beams=1).bleu == pytest.approx(best["valid_bleu"])


def test_a_training_without_a_better_bleu_ends_early(paths: tuple[Path, Path], tmp_path: Path) -> None:
    training = {"select": "bleu", "patience": 3, "lr": 1e-9, "validations": 20, "valid_pairs": 4}
    run = train(*paths, out=tmp_path / "run", steps=40, training=training)
    validations = [record["step"] for record in metrics(run) if "valid_bleu" in record]
    assert validations == [2, 4, 6, 8]  # the best, then three without improvement
    assert run.result["steps"] == 8


def test_bleu_is_refused_without_translations(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text\n" * 20)
    with pytest.raises(ChainruleError) as error:
        cr.train(text, model="lstm", out=tmp_path / "run", settings={"training": {"select": "bleu"}})
    assert str(error.value) == ("training.select = 'bleu', but lstm reports loss; choose one of these")


@pytest.mark.parametrize("option", ["batch_size", "length"])
def test_options_of_rows_are_refused_on_pairs(tmp_path: Path, option: str) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\n" * 20)
    with pytest.raises(ChainruleError) as error:
        cr.train(pairs, model="seq2seq-rnn", out=tmp_path / "run", steps=1, settings={"training": {option: 2}})
    meaning = {"batch_size": "the number of rows per batch", "length": "the tokens per row"}[option]
    assert str(error.value) == f"training.{option} sets {meaning} and has no effect on seq2seq-rnn; leave it out"


# Spans of plain text


def test_span_corruption_reads_texts_of_two_languages(tmp_path: Path) -> None:
    for name in ("book.en", "book.de"):
        (tmp_path / name).write_text("".join(f"{source} {target}\n" for source, target in letter_pairs(200)))
    settings = {
        "model": {**SMALL, "context": 32, "sentinels": 10},
        "training": {"batch_size": 4, "length": 16, "optimizer": "adamw", "lr": 0.01, "validations": 1},
    }
    run = cr.train(
        tmp_path / "book.en",
        tmp_path / "book.de",
        model="t5",
        objective="spans",
        tokenizer="char",
        steps=2,
        out=tmp_path / "run",
        settings=settings,
    )
    assert RunFolder(tmp_path / "run").read_result()["steps"] == 2  # type: ignore[index]
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert run.validation().cross_entropy == pytest.approx(logged[-1]["valid_loss"], rel=1e-5)


def test_words_of_one_vocabulary_are_counted_on_either_side(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("aab\tcc\n" * 30, encoding="utf-8")
    run = cr.train(pairs, model="fat", tokenizer="char", steps=1, out=tmp_path / "run", embedding=8, heads=2)
    counts = {run.tokenizer.piece(token): int(count) for token, count in enumerate(run.model.source_counts)}
    assert {letter: counts[letter] for letter in "abc"} == {"a": 56, "b": 28, "c": 0}  # 2 of 30 held out
    assert int(run.model.unigram_counts[run.tokenizer.to_id("c")]) == 56
