"""The map of vectors against the eigenvectors of the covariance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import chainrule as cr
from chainrule.errors import ConfigError, DataError
from chainrule.inference.vector_map import map_vectors
from chainrule.runs.vectors import VectorRun


def test_principal_components_are_eigenvectors_of_the_covariance() -> None:
    vectors_ND = np.random.default_rng(1).normal(size=(30, 7)) * np.arange(1, 8)
    found = map_vectors([str(n) for n in range(30)], vectors_ND)
    units_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    centred_ND = units_ND - units_ND.mean(0)
    values_D, directions_DD = np.linalg.eigh(centred_ND.T @ centred_ND)
    assert found.shares == pytest.approx((values_D[-1] / values_D.sum(), values_D[-2] / values_D.sum()), rel=1e-5)
    for axis, direction_D in (("x", directions_DD[:, -1]), ("y", directions_DD[:, -2])):
        places_N = [getattr(point, axis) for point in found.points]
        expected_N = centred_ND @ direction_D
        np.testing.assert_allclose(np.abs(places_N), np.abs(expected_N), atol=1e-6)
        assert max(places_N, key=abs) > 0
    assert [point.label for point in found.points] == [str(n) for n in range(30)]
    assert json.loads(json.dumps(found.to_dict()))["points"][0]["label"] == "0"


def test_few_and_equal_vectors() -> None:
    same = map_vectors(["a", "b", "c"], np.ones((3, 4)))
    assert [point[1:] for point in same.points] == [pytest.approx((0, 0), abs=1e-12)] * 3
    line = map_vectors(["a", "b", "c"], np.array([[1.0], [-1.0], [1.0]]))
    assert line.shares == (pytest.approx(1.0), 0.0)
    with pytest.raises(ConfigError, match=r"^a map of 2 vectors is no map; give at least 3 words or texts$"):
        map_vectors(["a", "b"], np.ones((2, 2)))


def test_a_run_maps_its_words(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nthe dog ran on the road\n" * 40)
    run = cr.train(text, model="word2vec", epochs=1, out=tmp_path / "run", settings={"model": {"vector_size": 8}})
    assert isinstance(run, VectorRun)
    whole = run.word_table.map()
    assert [point.label for point in whole.points] == run.words[:200]
    assert [point.label for point in run.word_table.map(count=4).points] == run.words[:4]
    chosen = run.word_table.map(["cat", "dog", "mat", "cat"])
    assert [point.label for point in chosen.points] == ["cat", "dog", "mat"]
    with pytest.raises(DataError, match="has no vector of the word 'cats'; did you mean 'cat'"):
        run.word_table.map(["cats", "dog", "mat"])
