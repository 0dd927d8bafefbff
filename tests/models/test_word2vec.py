"""The model word2vec: its options, its file and its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chainrule.base.arrays import write_arrays
from chainrule.config import parse
from chainrule.engines.word2vec.kernels import SweepOptions, Word2VecWeights
from chainrule.errors import ConfigError, RunError
from chainrule.models.word2vec import Word2Vec, Word2VecConfig


def some_model() -> Word2Vec:
    """Vectors of three numbers in rows of eight, as training has them."""
    rng = np.random.default_rng(0)
    rows = [np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32), np.zeros((0, 8), np.float32)]
    for rows_VD in rows:
        rows_VD[:, :3] = rng.normal(size=(len(rows_VD), 3))
    training_progress = {"step": 7, "loss": None}
    counts_V = np.array([9, 7, 5, 5])
    return Word2Vec(
        Word2VecConfig(vector_size=3), Word2VecWeights(*rows), np.arange(2, 6), counts_V, 6, training_progress
    )


def test_a_loaded_model_is_the_saved_one(tmp_path: Path) -> None:
    model = some_model()
    model.save(tmp_path / "model.safetensors")
    again = Word2Vec.load(model.config, tmp_path / "model.safetensors")
    for name in ("vectors_VD", "output_VD", "nodes_VD", "ids_V", "counts_V"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert isinstance(again.vectors_VD, np.memmap)
    assert again.vectors_VD.shape == (4, 3)
    assert (again.vocab_size, again.parameter_count, again.training_progress) == (6, 24, {"step": 7, "loss": None})
    assert again.eval() is again


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_arrays(path, {"vectors": np.zeros((2, 2), np.float32)}, {})
    with pytest.raises(RunError) as caught:
        Word2Vec.load(Word2VecConfig(), path)
    assert str(caught.value) == f"{path} is not the file of a word2vec model; restore the original file of the run"


def test_defaults_are_those_of_gensim() -> None:
    gensim = pytest.importorskip("gensim.models.word2vec")
    theirs = gensim.Word2Vec()
    ours = Word2VecConfig()
    names = ("sg", "window", "hs", "negative", "ns_exponent", "cbow_mean", "sample", "alpha", "min_alpha", "min_count")
    for name in (*names, "epochs", "vector_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.shrink_windows == bool(theirs.shrink_windows)


def test_the_plan_follows_the_options() -> None:
    plan = Word2VecConfig(sg=1, hs=1, negative=0, window=7, cbow_mean=0, shrink_windows=False).plan(seed=3)
    assert plan.options == SweepOptions(True, True, 0, 7, False, False)
    assert (plan.sample, plan.exponent, plan.seed) == (1e-3, 0.75, 3)


def test_a_training_without_an_objective_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Word2VecConfig, {"negative": 0}, "model")
    assert str(caught.value) == (
        "model.hs and model.negative are both 0, so there is no training objective; set model.negative=5 or model.hs=1"
    )
    assert parse(Word2VecConfig, {"negative": 5, "hs": 1}, "model").hs == 1  # both are allowed


def test_a_rising_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Word2VecConfig, {"alpha": 0.01, "min_alpha": 0.02}, "model")
    assert str(caught.value) == (
        "model.min_alpha is 0.02, above model.alpha = 0.01; the learning rate falls from alpha to min_alpha"
    )
