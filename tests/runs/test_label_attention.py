"""What classifiers look at, and the probabilities of tags: each by a second route."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from chainrule.errors import ConfigError
from chainrule.runs.labels import ClassifierRun, TaggerRun
from commands import chainrule


def classifier(folder: Path, **options: Any) -> ClassifierRun:
    paired = options.pop("paired", False)
    rows = [("pos", "a good film"), ("neg", "a bad film"), ("pos", "good fun"), ("neg", "bad noise")] * 10
    path = folder / "labels.tsv"
    path.write_text("".join(f"{label}\t{text}" + (f"\t{text} too" if paired else "") + "\n" for label, text in rows))
    settings = {"model": {"embedding": 8, "hidden": 8, **options}}
    run = cr.train(path, model="classifier", steps=8, out=folder / "run", settings=settings)
    assert isinstance(run, ClassifierRun)
    return run


@pytest.mark.parametrize("pooling", ["attention", "attention-from-pooled"])
@pytest.mark.parametrize("encoder", ["lstm", "bert"])
def test_the_weights_are_those_that_make_the_vector(tmp_path: Path, pooling: str, encoder: str) -> None:
    """The states weighted by them, one by one, give the probabilities of the labels."""
    run = classifier(tmp_path, pooling=pooling, encoder=encoder, heads=2)
    found = run.attention("a good zzz film")
    assert found.tokens[-5:] == ["a", "good", "zzz", "film", "<eos>"]
    assert math.fsum(found.weights) == pytest.approx(1, abs=1e-6)
    assert all(weight > 0 for weight in found.weights)
    model = run.model
    encoded = model.encode(run._examples(["a good zzz film"]).batch(np.zeros(1, np.int64)))
    assert len(found.tokens) == len(found.weights) == encoded.states_BSD.shape[1]
    vector_D = sum(w * state_D for w, state_D in zip(found.weights, encoded.states_BSD[0], strict=True))
    with torch.no_grad():
        scores_C = model.network(vector_D.float())
    np.testing.assert_allclose(scores_C.softmax(0), run.probabilities("a good zzz film"), atol=1e-5)


def test_pairs_and_other_poolings(tmp_path: Path) -> None:
    run = classifier(tmp_path, paired=True)
    (found,) = run.attention([("a good film", "bad fun")])
    assert found.tokens == ["a", "good", "film", "<eos>", "bad", "fun", "<eos>"]
    (tmp_path / "mean").mkdir()
    other = classifier(tmp_path / "mean", pooling="mean")
    with pytest.raises(ConfigError, match=r"has the pooling mean, which has no attention to show; train with model\."):
        other.attention("a film")


def test_on_the_command_line(tmp_path: Path) -> None:
    run = classifier(tmp_path)
    (tmp_path / "lines.txt").write_text("good film\n\nbad\n")
    done = chainrule("classify", run.folder.path, tmp_path / "lines.txt", "--attention", tmp_path / "weights.jsonl")
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (tmp_path / "weights.jsonl").read_text().splitlines()]
    assert records == [one.to_dict() for one in run.attention(["good film", "", "bad"])]
    assert len(done.out.splitlines()) == 3


@pytest.mark.parametrize("crf", [False, True])
def test_probabilities_of_tags(tmp_path: Path, crf: bool) -> None:
    path = tmp_path / "tags.conll"
    path.write_text("the D\ncat N\nsat V\n\na D\ndog N\nran V\n\n" * 20)
    settings = {"model": {"embedding": 8, "hidden": 8, "crf": crf, "encoder": "lstm"}}
    run = cr.train(path, model="tagger", steps=12, out=tmp_path / "run", settings=settings)
    assert isinstance(run, TaggerRun)
    sentences = ["the cat sat", "", "a dog"]
    found = run.probabilities(sentences)
    assert [one.shape for one in found] == [(3, 3), (0, 3), (2, 3)]
    for one in found:
        np.testing.assert_allclose(one.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(run.probabilities("a dog"), found[2], atol=1e-6)
    if not crf:
        assert [[run.labels[tag] for tag in one.argmax(1)] for one in found] == run.tag(sentences)
