"""Classifiers from file to label: trained, resumed, measured, used and refused."""

from __future__ import annotations

import json
import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from chainrule.errors import ConfigError, DataError
from chainrule.runs.base import MissingVerbError
from chainrule.runs.labels import ClassifierRun
from chainrule.text.formats.labels import LabelledFiles
from chainrule.training.fitting.fitting import TrainingListener
from commands import chainrule

GOOD, BAD = ("good", "fine", "nice", "great"), ("bad", "sad", "awful", "grim")
OTHERS = ("the", "a", "film", "was", "very", "it", "seemed", "so", "and", "then")
QUICK = {"training": {"lr": 0.01, "batch_size": 16, "threads": 1}, "model": {"embedding": 16, "hidden": 16}}


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose label depends on one of their words."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        label = draw.choice(["pos", "neg"])
        words = draw.choices(OTHERS, k=draw.randint(2, 8))
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if label == "pos" else BAD))
        made.append((label, " ".join(words)))
    return made


def tsv(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train(*data: Path, **options: Any) -> ClassifierRun:
    settings = {**QUICK, **options.pop("settings", {})}
    run = cr.train(*data, model="classifier", settings=settings, **options)
    assert isinstance(run, ClassifierRun)
    return run


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    tsv(folder / "train.tsv", texts(300, 1))
    tsv(folder / "valid.tsv", texts(60, 2))
    tsv(folder / "test.tsv", texts(80, 3))
    train(folder / "train.tsv", valid=folder / "valid.tsv", epochs=8, out=folder / "run")
    return folder


@pytest.fixture
def run(desk: Path) -> ClassifierRun:
    loaded = cr.load(desk / "run")
    assert isinstance(loaded, ClassifierRun)
    return loaded


def test_a_separable_task_is_learned(run: ClassifierRun, desk: Path) -> None:
    measured = run.evaluate(desk / "test.tsv")
    assert (measured.accuracy, measured.macro_f1, measured.micro_f1) == (1.0, 1.0, 1.0)
    assert measured.confusion is not None
    assert [sum(row) for row in measured.confusion] == [measured.labels[name].examples for name in ("neg", "pos")]
    assert measured.loss < 0.1
    assert measured.protocol.startswith("80 texts; the most probable label is predicted")
    assert run.validation().examples == 60
    assert run.labels == ("neg", "pos")


def test_measures_agree_with_the_predictions(run: ClassifierRun, desk: Path) -> None:
    rows = texts(80, 3)
    predicted = [best[0] for best in run.classify(text for _, text in rows)]
    right = sum(one.label == label for one, (label, _) in zip(predicted, rows, strict=True))
    assert right / 80 == run.evaluate(desk / "test.tsv").accuracy


def test_order_is_kept_and_other_texts_change_nothing(run: ClassifierRun) -> None:
    given = [text for _, text in texts(150, 4)]
    together = [best[0] for best in run.classify(given)]
    for number in (0, 7, 8, 100, 149):
        (alone,) = run.classify([given[number]])
        assert alone[0].label == together[number].label
        assert alone[0].probability == pytest.approx(together[number].probability, abs=1e-5)


def test_all_labels_sum_to_one_the_best_first(run: ClassifierRun) -> None:
    (predicted,) = run.classify(["the film was great\nand nice"], top=9)
    assert [one.label for one in predicted] == ["pos", "neg"]
    assert sum(one.probability for one in predicted) == pytest.approx(1)


def test_answers_come_while_texts_are_still_read(run: ClassifierRun) -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield "a fine film"

    assert next(run.classify(endless()))[0].label == "pos"
    assert read <= 8


def test_patience_ends_a_training_early(desk: Path, tmp_path: Path) -> None:
    """Random labels: nothing can be learned, so validation soon stops improving."""
    draw = random.Random(5)
    noise = [(draw.choice(["pos", "neg"]), text) for _, text in texts(120, 5)]
    made = train(tsv(tmp_path / "noise.tsv", noise), epochs=40, out=tmp_path / "run")
    assert made.config.training.patience == 3
    whole = 40 * -(-114 // 16)
    assert made.result["steps"] < whole / 2
    assert made.result["best_step"] < made.result["steps"]


def test_a_stopped_training_resumes_exactly(desk: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "training": {**QUICK["training"], "log_steps": 1}}
    options = {"valid": desk / "valid.tsv", "encoder": "lstm", "steps": 12, "settings": settings}
    stopped = []

    def stop(update: Any) -> None:
        if update.state.step == 7 and not stopped:
            stopped.append(7)
            os.kill(os.getpid(), signal.SIGINT)

    weights = []
    for name, listener in (("whole", TrainingListener()), ("broken", TrainingListener(update=stop))):
        for _ in range(2 if name == "broken" else 1):
            train(desk / "train.tsv", out=tmp_path / name, listener=listener, **options)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert stopped == [7]
    assert weights[0] == weights[1]


def test_pairs(tmp_path: Path) -> None:
    """Which of two texts contains x: a bag of vectors can learn it only from the vector that marks the second text."""
    draw, rows = random.Random(6), []
    for _ in range(400):
        first = draw.choice(["first", "second"])
        texts = [f"it is {name} {draw.choice(OTHERS)}" for name in ("xy" if first == "first" else "yx")]
        rows.append((first, *texts))
    path = tsv(tmp_path / "pairs.tsv", rows)
    settings = {**QUICK, "training": {**QUICK["training"], "patience": 0}}
    made = train(path, epochs=15, out=tmp_path / "run", settings=settings)
    assert made.evaluate(path).accuracy == 1.0
    predicted = [best[0].label for best in made.classify([("it is x so", "it is y"), ("it is y", "it is x so")])]
    assert predicted == ["first", "second"]
    with pytest.raises(DataError) as caught:
        made.classify("it is x")
    assert str(caught.value) == (
        f"got one text to classify (number 1 of those read together), but {tmp_path / 'run'} was trained on pairs; "
        "give two"
    )


def test_several_labels(tmp_path: Path) -> None:
    draw, records = random.Random(7), []
    for _ in range(400):
        labels = [name for name in ("cats", "dogs", "rain") if draw.random() < 0.4]
        words = [*labels, *draw.choices(OTHERS, k=4)]
        draw.shuffle(words)
        records.append(json.dumps({"text": " ".join(words), "label": labels}))
    path = tmp_path / "several.jsonl"
    path.write_text("\n".join(records), encoding="utf-8")
    made = train(
        path, epochs=20, out=tmp_path / "run", settings={**QUICK, "training": {**QUICK["training"], "patience": 0}}
    )
    measured = made.evaluate(path)
    assert made.config.model.options["multi_label"] is True
    assert measured.accuracy > 0.97
    assert measured.confusion is None
    (predicted,) = made.classify(["rain and cats"], top=3)
    assert {one.label: one.probability > 0.5 for one in predicted} == {"cats": True, "dogs": False, "rain": True}


def test_held_out_texts_are_drawn_from_everywhere(desk: Path, tmp_path: Path) -> None:
    """A file that is sorted by label is validated with all labels."""
    path = tsv(tmp_path / "sorted.tsv", sorted(texts(200, 8)))
    made = train(path, steps=3, out=tmp_path / "run")
    measured = made.validation()
    assert measured.examples == 10
    assert min(one.examples for one in measured.labels.values()) > 0


def test_long_texts_are_cut_with_a_note(desk: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    listener = TrainingListener(note=notes.append)
    made = train(desk / "train.tsv", encoder="bert", positions=6, steps=2, out=tmp_path / "run", listener=listener)
    lengths = [len(text.split()) + 1 for _, text in texts(300, 1)]
    cut = sum(length > 6 for length in lengths)
    beyond = "texts are longer than 6 tokens; the encoder reads no more"
    assert f"{cut} of 300 {beyond}" in notes
    with pytest.warns(UserWarning, match=f"1 of 2 {beyond}"):
        list(made.classify(["a", " ".join(["film"] * 9)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(made.classify(["short"]))


def test_mistakes_in_the_data(desk: Path, tmp_path: Path) -> None:
    one = tsv(tmp_path / "one.tsv", [("x", "a"), ("x", "b")])
    with pytest.raises(DataError) as caught:
        train(one, out=tmp_path / "run")
    assert str(caught.value) == (f"{one} has one label only, 'x': expected at least two; add texts with another label.")
    other = tsv(tmp_path / "other.tsv", [("pos", "a"), ("mixed", "b")])
    with pytest.raises(DataError) as caught:
        train(desk / "train.tsv", valid=other, out=tmp_path / "run")
    assert str(caught.value) == (
        f"{other}, line 2: the label 'mixed' does not occur in the training data (found there: neg, pos); leave it "
        "out, or train with texts that have it."
    )
    lists = tmp_path / "lists.jsonl"
    lists.write_text('{"text": "a", "label": ["pos", "neg"]}', encoding="utf-8")
    with pytest.raises(DataError) as caught:
        train(desk / "train.tsv", valid=lists, out=tmp_path / "run")
    assert str(caught.value) == (
        f"{lists} has lists of labels, but the training data has one label per text; give one label here"
    )
    single = tsv(tmp_path / "single.tsv", [("x", "a")])
    with pytest.raises(DataError) as caught:
        train(single, out=tmp_path / "run", labels=["x", "y"])
    assert str(caught.value) == (
        f"{single} holds one text only, so none can be held out; give more, or others with --valid."
    )
    assert not (tmp_path / "run").exists()


def test_what_a_classifier_does_not_do(run: ClassifierRun, desk: Path) -> None:
    for verb in ("generate", "stream", "score", "compress", "open_held_out"):
        with pytest.raises(MissingVerbError) as missing:
            getattr(run, verb)
        assert str(missing.value).startswith(f"{desk / 'run'} (classifier) has no {verb}; ")
        assert str(missing.value).endswith("; this run has classify, eval, info, neighbours")
    with pytest.raises(ConfigError) as caught:
        run.classify("x", top=0)
    assert str(caught.value) == "top is 0; expected at least 1 label"


def test_chinese_is_read_by_characters(tmp_path: Path) -> None:
    path = tsv(tmp_path / "zh.tsv", [("好", "这个电影很好"), ("坏", "这个电影很坏")] * 20)
    made = train(path, steps=2, out=tmp_path / "run")
    assert made.tokenizer.kind == "char"


# The command line


def test_classify_prints_labels(run: ClassifierRun, desk: Path) -> None:
    lines = "a great film\n\nso sad and grim\n"
    result = chainrule("classify", desk / "run", stdin=lines)
    assert result.code == 0
    printed = [line.split("\t") for line in result.out.splitlines()]
    wanted = [best[0] for best in run.classify(lines.splitlines())]
    assert [(label, float(p)) for label, p in printed] == [
        (one.label, pytest.approx(one.probability, abs=1e-3)) for one in wanted
    ]
    assert result.err.splitlines()[-1].startswith("3 lines, ")


def test_classify_prints_json_and_the_top_labels(run: ClassifierRun, desk: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a great film\n", encoding="utf-8")
    predicted = json.loads(chainrule("classify", desk / "run", file, "--json").out)
    assert predicted["label"] == "pos"
    assert set(predicted["probabilities"]) == {"neg", "pos"}
    assert sum(predicted["probabilities"].values()) == pytest.approx(1)
    top = chainrule("classify", desk / "run", file, "--top", 2).out.split()
    assert top[::2] == ["pos", "neg"]


def test_eval_prints_the_report(run: ClassifierRun, desk: Path) -> None:
    result = chainrule("eval", desk / "run", desk / "test.tsv", "--json")
    assert result.code == 0
    assert json.loads(result.out)["labels"]["pos"]["f1"] == 1.0
    assert LabelledFiles([desk / "test.tsv"]).labels().names == ("neg", "pos")


def test_a_pretrained_run_reads_the_text(desk: Path, tmp_path: Path) -> None:
    """A frozen elmo: its weights are copied and stay, the mix of its layers is learned, its tokeniser is used."""
    plain = tmp_path / "plain.txt"
    plain.write_text("".join(text + "\n" for _, text in texts(200, 9)), encoding="utf-8")
    small = {"model": {"embedding": 8, "hidden": 8, "layers": 1}, "tokenizer": {"kind": "word", "min_count": 1}}
    elmo = cr.train(plain, model="elmo", steps=3, out=tmp_path / "elmo", settings=small)
    made = train(desk / "train.tsv", pretrained=str(tmp_path / "elmo"), epochs=8, out=tmp_path / "run")
    assert made.tokenizer.fingerprint == elmo.tokenizer.fingerprint
    before = {name: tensor for name, tensor in elmo.model.state_dict().items() if "word_table" in name}
    after = [tensor for name, tensor in made.model.state_dict().items() if "word_table" in name]
    assert len(before) == len(after) == 1
    assert torch.equal(next(iter(before.values())), after[0])
    assert made.model.pretrained.mix.weights.abs().max() > 0
    assert made.evaluate(desk / "test.tsv").accuracy > 0.9
