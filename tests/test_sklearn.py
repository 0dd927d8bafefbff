"""The estimators for scikit-learn: its own checks, its tools, and the figures of the runs behind them."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import chainrule as cr
from chainrule.errors import ChainruleError
from chainrule.sklearn import LanguageModelScorer, TextClassifier, TextVectorizer

TEXTS = [f"{word} {number % 5}" for number in range(15) for word in ("good fine nice", "bad awful sad")]
LABELS = np.array(["pos" if "good" in text else "neg" for text in TEXTS])
SMALL = {"embedding": 8, "hidden": 8, "dropout": 0.0}


def classifier(**options: Any) -> TextClassifier:
    settings = {"training": {"batch_size": 8, "lr": 0.05, "validations": 2}}
    return TextClassifier(steps=60, model_options=SMALL, settings=settings, **options)


CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)
"""The checks of scikit-learn that give no numeric arrays to `fit`; it skips the others for estimators of texts."""


@pytest.mark.parametrize("kind", [TextClassifier, TextVectorizer, LanguageModelScorer])
@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_of_scikit_learn(kind: Any, name: str) -> None:
    getattr(estimator_checks, name)(kind.__name__, kind())


@pytest.mark.parametrize("kind", [TextClassifier, TextVectorizer, LanguageModelScorer, CountVectorizer])
def test_check_estimator_knows_that_they_read_texts(kind: Any) -> None:
    """As those of scikit-learn itself that read texts."""
    with pytest.warns(SkipTestWarning, match="which requires input  of type"):
        estimator_checks.check_estimator(kind())


def test_a_classifier_of_texts() -> None:
    fitted = classifier().fit(TEXTS, LABELS)
    assert fitted.classes_.tolist() == ["neg", "pos"]
    assert fitted.score(TEXTS, LABELS) == 1.0
    found_PC = fitted.predict_proba(pandas.Series(["good fine nice 1", "bad awful sad 2"]))
    assert found_PC.sum(1) == pytest.approx(np.ones(2))
    assert fitted.classes_[found_PC.argmax(1)].tolist() == ["pos", "neg"]
    np.testing.assert_array_equal(fitted.predict(np.array(TEXTS)), fitted.predict(pandas.DataFrame({"x": TEXTS})))


@pytest.mark.parametrize("labels", [LABELS == "pos", np.where(LABELS == "pos", 1, -1)])
def test_classes_keep_their_type(labels: Any) -> None:
    fitted = classifier(class_weight={True: 2.0}).fit(TEXTS, labels)
    assert fitted.classes_.dtype == labels.dtype
    assert fitted.predict(TEXTS).tolist() == labels.tolist()
    assert fitted.run_.model.config.class_weight == {"0": 1.0, "1": 2.0}


def test_in_a_search_and_in_cross_validation() -> None:
    search = GridSearchCV(classifier(), {"class_weight": [None, "balanced"], "encoder": ["bag"]}, cv=2)
    assert search.fit(TEXTS, LABELS).best_score_ > 0.9
    assert cross_val_score(classifier(), TEXTS, LABELS, cv=2).mean() > 0.9


def test_vectors_in_a_pipeline(tmp_path: Path) -> None:
    vectorizer = TextVectorizer(epochs=3, model_options={"vector_size": 8, "sample": 0})
    piped = make_pipeline(vectorizer, LogisticRegression(C=1000)).fit(TEXTS, LABELS)
    assert piped.score(TEXTS, LABELS) > 0.9
    run = cr.train(TEXTS, model="word2vec", epochs=1, vector_size=6, min_count=1, out=tmp_path / "run")
    for given in (run, tmp_path / "run", str(tmp_path / "run")):
        vectors_ND = TextVectorizer(given, normalise=True).fit_transform(TEXTS)
        np.testing.assert_allclose(vectors_ND, run.embed(TEXTS, normalise=True), atol=1e-6)


def test_scores_are_those_of_the_run() -> None:
    scorer = LanguageModelScorer(model_options={"order": 2}).fit(TEXTS)
    samples_P = scorer.score_samples(["good fine nice 1", "xyzzy"])
    run: Any = scorer.run_
    assert samples_P.tolist() == [one.log_prob for one in run.score(["good fine nice 1", "xyzzy"], oov="spell")]
    assert scorer.score(TEXTS[:2]) == pytest.approx(scorer.score_samples(TEXTS[:2]).sum())
    in_bits = LanguageModelScorer(measure="bits_per_byte", model_options={"order": 2}).fit(TEXTS)
    size = sum(len(text) + 1 for text in TEXTS[:2])
    assert in_bits.score(TEXTS[:2]) == pytest.approx(scorer.score(TEXTS[:2]) / math.log(2) / size)
    best = GridSearchCV(LanguageModelScorer(), {"model_options": [{"order": 1}, {"order": 3}]}, cv=2).fit(TEXTS)
    assert best.best_params_ == {"model_options": {"order": 3}}


def test_folders_live_as_long_as_the_estimator(tmp_path: Path) -> None:
    scorer = LanguageModelScorer(model_options={"order": 1}).fit(TEXTS)
    folder = scorer.run_.folder.path
    assert folder.is_dir()
    del scorer
    assert not folder.exists()
    LanguageModelScorer(out=tmp_path / "run").fit(TEXTS)
    assert isinstance(cr.load(tmp_path / "run"), cr.Run)


def test_a_pickled_estimator_contains_its_run() -> None:
    fitted = LanguageModelScorer(model_options={"order": 2}).fit(TEXTS)
    content, expected = pickle.dumps(fitted), fitted.score_samples(TEXTS[:3])
    folder = fitted.run_.folder.path
    del fitted
    assert not folder.exists()
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.score_samples(TEXTS[:3]), expected)
    folder = again.run_.folder.path
    assert folder.is_dir()
    del again
    assert not folder.exists()


def test_refusals() -> None:
    with pytest.raises(NotFittedError):
        TextClassifier().predict(TEXTS)
    for call, message in [
        (
            lambda: classifier().fit("one text", ["a"]),
            "got one string; expected a list or column of texts; give [text]",
        ),
        (lambda: classifier().fit([], []), "got no texts; expected at least one; give a list or column of texts"),
        (lambda: classifier().fit(["a", None], ["x", "y"]), "row 1 (the first is row 0) is missing (None); expected a"),
        (lambda: classifier().fit(["a", "b"], ["x"]), "got 2 texts and labels of shape (1,); give one label per text"),
        (lambda: LanguageModelScorer(measure="x").fit(TEXTS), "measure is 'x'; expected log_prob or bits_per_byte"),
    ]:
        with pytest.raises(ChainruleError) as caught:
            call()
        assert str(caught.value).startswith(message)
    copy = clone(classifier(class_weight="balanced"))
    assert copy.get_params()["class_weight"] == "balanced"


# The checks of scikit-learn that fit: they make arrays of numbers, of which every row becomes a text


def as_texts(X: Any) -> Any:
    """Each row as words that name its columns and rounded numbers; what is no array of rows stays as it is."""
    if not isinstance(X, np.ndarray) or X.ndim != 2:
        return X
    return [" ".join(f"c{column}v{round(float(value))}" for column, value in enumerate(row)) for row in X]


class FromNumbers:
    """Mixin for an estimator of texts whose methods take arrays of numbers."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = False, True, False
        return tags

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(as_texts(X), y)  # type: ignore[misc]


class NumberClassifier(FromNumbers, TextClassifier):
    def predict(self, X: Any) -> Any:
        return super().predict(as_texts(X))

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(as_texts(X))


class NumberVectorizer(FromNumbers, TextVectorizer):
    def transform(self, X: Any) -> Any:
        return super().transform(as_texts(X))


class NumberScorer(FromNumbers, LanguageModelScorer):
    def score_samples(self, X: Any) -> Any:
        return super().score_samples(as_texts(X))


NUMBERED = {
    "classifier": lambda: NumberClassifier(steps=3, model_options=SMALL, settings={"training": {"validations": 1}}),
    "vectorizer": lambda: NumberVectorizer(epochs=1, model_options={"vector_size": 4, "min_count": 1}),
    "scorer": lambda: NumberScorer(model_options={"order": 2}),
}
FITTING = (
    "check_dict_unchanged",
    "check_dont_overwrite_parameters",
    "check_estimators_fit_returns_self",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit_check_is_fitted",
    "check_fit_score_takes_y",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
)


@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.parametrize("name", FITTING)
def test_the_checks_of_scikit_learn_that_fit(kind: str, name: str) -> None:
    estimator = NUMBERED[kind]()
    getattr(estimator_checks, name)(type(estimator).__name__, estimator)


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ChainruleError, match=r"^classifier gives a text no probability; expected a language model, for"
    ):
        LanguageModelScorer("classifier").fit(TEXTS)
    with pytest.raises(ValueError, match=r"^got one class, 'a'; a classifier needs at least 2"):
        TextClassifier(epochs=1).fit(TEXTS, ["a"] * len(TEXTS))
