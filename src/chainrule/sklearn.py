"""Estimators for scikit-learn: a classifier of texts, vectors of texts, and a language model that scores texts.

from chainrule.sklearn import TextClassifier, TextVectorizer
TextClassifier(encoder="bag", class_weight="balanced").fit(texts, labels).predict(["one text"])
make_pipeline(TextVectorizer(), LogisticRegression()).fit(texts, labels)

They take lists, arrays or columns of strings, and work in Pipeline, GridSearchCV and cross_val_score. The trained run
is `run_`; its folder is a temporary one that is deleted with the estimator, unless `out` names another. A pickled
estimator contains its run as the bytes of a packed one, and unpickles into a temporary folder of its own.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from chainrule.base.arrays import Array
from chainrule.checkpoint.pack import pack, unpack
from chainrule.data.in_memory import Texts, several_texts
from chainrule.errors import ConfigError, DataError
from chainrule.experiments.train import train
from chainrule.registry import MODELS
from chainrule.runs.base import Run
from chainrule.runs.load import load

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ConfigError("chainrule.sklearn needs scikit-learn: pip install 'chainrule[sklearn]'") from None


class _TextEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """What the estimators share: checked texts, and a run in a folder that lives as long as they do."""

    out: str | Path | None
    run_: Run

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.non_deterministic = True  # a budget in minutes depends on the machine
        return tags

    def _folder(self) -> Path:
        """The folder of the next run: `out`, or a temporary one."""
        return Path(self.out) if self.out is not None else self._temporary() / "run"

    def _temporary(self) -> Path:
        """A new folder that is deleted with the estimator."""
        folder = tempfile.mkdtemp(prefix="chainrule-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def __getstate__(self) -> dict[str, Any]:
        """The parameters and attributes, with the run as bytes."""
        state = dict(super().__getstate__())
        if isinstance(state.get("run_"), Run):
            with tempfile.TemporaryDirectory(prefix="chainrule-") as place:
                pack(state["run_"].folder.path, packed := Path(place, "run.crn"))
                state["run_"] = packed.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The estimator of a state; its run is loaded."""
        super().__setstate__(state)
        if isinstance(state.get("run_"), bytes):
            packed = self._temporary() / "run.crn"
            packed.write_bytes(state["run_"])
            unpack(packed, folder := packed.with_name("run"))
            packed.unlink()
            self.run_ = load(folder)

    def _fit(self, *data: Any, **options: Any) -> Run:
        """Train a run; options that are None are chosen as in `chainrule.train`."""
        params = self.get_params(deep=False)
        options |= {name: params[name] for name in ("epochs", "steps", "minutes", "seed", "settings")}
        given = {name: value for name, value in options.items() if value is not None}
        return train(*data, out=self._folder(), **given)


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A classifier of texts, as scikit-learn's: fit, predict, predict_proba, score.

    Args:
        encoder: The encoder, trained from scratch: "bag", "lstm", "conv-attention", "elmo", "bert" or "transformer".
            None: "bag", or `pretrained`.
        pretrained: A pretrained encoder: a folder, a run, or an installed package. None: trained from scratch.
        tuned: Whether the pretrained encoder is fine-tuned.
        class_weight: The weight of each label: "balanced", or a table {label: weight}. None: all weigh the same.
        epochs: Passes over the texts. None: no bound by passes.
        steps: Training steps. None: no bound by steps.
        minutes: Training time. With none of the three: chosen from the number of texts.
        seed: Random seed.
        model_options: Further options of the model, for example {"embedding": 64}.
        settings: Further options, nested as in config.toml, for example {"training": {"lr": 0.01}}.
        out: Folder of the run. None: a temporary one.
    """

    def __init__(
        self,
        *,
        encoder: str | None = None,
        pretrained: str | None = None,
        tuned: bool = False,
        class_weight: str | dict[Any, float] | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        seed: int = 1,
        model_options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.encoder = encoder
        self.pretrained = pretrained
        self.tuned = tuned
        self.class_weight = class_weight
        self.epochs = epochs
        self.steps = steps
        self.minutes = minutes
        self.seed = seed
        self.model_options = model_options
        self.settings = settings
        self.out = out

    def fit(self, X: Texts, y: Any) -> Self:
        """Train on texts and their labels.

        Args:
            X: A list, array or column of texts.
            y: The label of each text: strings, numbers or booleans.
        """
        texts = several_texts(X)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None; give the label of each text")
        check_classification_targets(y)
        targets = np.asarray(y)
        if targets.shape != (len(texts),):
            raise DataError(f"got {len(texts):,} texts and labels of shape {targets.shape}; give one label per text")
        self.classes_, places_P = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"got one class, {self.classes_.tolist()[0]!r}; a classifier needs at least 2; add texts of another"
            )
        weight = self.class_weight
        if isinstance(weight, dict):
            names = {label: f"{place}" for place, label in enumerate(self.classes_.tolist())}
            weight = {names.get(label, str(label)): value for label, value in weight.items()}
        labels = [f"{place}" for place in places_P.tolist()]
        options = {"encoder": self.encoder, "pretrained": self.pretrained, "tuned": self.tuned or None}
        self.run_ = self._fit(
            texts,
            labels,
            model="classifier",
            class_weight=weight,
            **options,
            **(self.model_options or {}),
        )
        return self

    def predict_proba(self, X: Texts) -> Array:
        """p of each class of each text, in the order of `classes_`.

        Args:
            X: A list, array or column of texts.
        """
        check_is_fitted(self, "run_")
        run: Any = self.run_
        found_PC: Array = run.probabilities(several_texts(X))
        return found_PC[:, [run.labels.index(f"{place}") for place in range(len(self.classes_))]]

    def predict(self, X: Texts) -> Array:
        """The most probable class of each text.

        Args:
            X: A list, array or column of texts.
        """
        best_P: Array = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best_P])


class TextVectorizer(TransformerMixin, _TextEstimator):  # type: ignore[misc]
    """Vectors of texts, from a run that exists or from a model that is trained on the texts.

    Args:
        run: A run or its folder whose vectors are used. None: a model is trained by `fit`.
        model: The model that `fit` trains, for example "word2vec", "lstm" or "bert".
        pooling: How the vectors of the tokens are combined: "mean", "max", "first" or "last".
        normalise: Whether each vector is scaled to length one.
        layer: The layer whose states are used. None: the last.
        epochs: Passes over the texts.
        steps: Training steps. None: no bound by steps.
        minutes: Training time. None: no bound by time.
        seed: Random seed.
        model_options: Further options of the model, for example {"vector_size": 50}.
        settings: Further options, nested as in config.toml.
        out: Folder of the trained run. None: a temporary one.
    """

    def __init__(
        self,
        run: Run | str | Path | None = None,
        *,
        model: str = "word2vec",
        pooling: str = "mean",
        normalise: bool = False,
        layer: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        seed: int = 1,
        model_options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.run = run
        self.model = model
        self.pooling = pooling
        self.normalise = normalise
        self.layer = layer
        self.epochs = epochs
        self.steps = steps
        self.minutes = minutes
        self.seed = seed
        self.model_options = model_options
        self.settings = settings
        self.out = out

    def fit(self, X: Texts, y: Any = None) -> Self:
        """Train the model, or load the given run.

        Args:
            X: A list, array or column of texts.
            y: Ignored.
        """
        texts = several_texts(X)
        if self.run is not None:
            self.run_ = self.run if isinstance(self.run, Run) else load(self.run)
            return self
        self.run_ = self._fit(
            texts,
            model=self.model,
            **({"min_count": 1} if self.model == "word2vec" else {}) | (self.model_options or {}),
        )
        return self

    def transform(self, X: Texts) -> Array:
        """The vector of each text, ND.

        Args:
            X: A list, array or column of texts.
        """
        check_is_fitted(self, "run_")
        pooling: Any = self.pooling
        return self.run_.embed(several_texts(X), pooling=pooling, normalise=self.normalise, layer=self.layer)


class LanguageModelScorer(_TextEstimator):
    """A language model whose `score_samples` are log-probabilities of texts, as those of scikit-learn's densities.

    Args:
        model: The language model.
        measure: What `score_samples` gives: "log_prob" in nats, or "bits_per_byte", negated so that more is better.
        oov: What unknown words cost: "spell" (their spelling), "unk" or "penalty", as in `run.score`.
        tokenizer: Kind of tokeniser. None: chosen from the texts.
        epochs: Passes over the texts. None: no bound by passes.
        steps: Training steps. None: no bound by steps.
        minutes: Training time. None: no bound by time.
        seed: Random seed.
        model_options: Further options of the model, for example {"order": 3}.
        settings: Further options, nested as in config.toml.
        out: Folder of the run. None: a temporary one.
    """

    def __init__(
        self,
        model: str = "ngram",
        *,
        measure: str = "log_prob",
        oov: str = "spell",
        tokenizer: str | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        seed: int = 1,
        model_options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.model = model
        self.measure = measure
        self.oov = oov
        self.tokenizer = tokenizer
        self.epochs = epochs
        self.steps = steps
        self.minutes = minutes
        self.seed = seed
        self.model_options = model_options
        self.settings = settings
        self.out = out

    def fit(self, X: Texts, y: Any = None) -> Self:
        """Train the language model.

        Args:
            X: A list, array or column of texts.
            y: Ignored.
        """
        if self.measure not in ("log_prob", "bits_per_byte"):
            raise ConfigError(f"measure is '{self.measure}'; expected log_prob or bits_per_byte")
        if MODELS.describe(self.model).task != "lm":
            raise ConfigError(f"{self.model} gives a text no probability; expected a language model, for example ngram")
        self.run_ = self._fit(
            several_texts(X),
            model=self.model,
            tokenizer=self.tokenizer,
            **(self.model_options or {}),
        )
        return self

    def score_samples(self, X: Texts) -> Array:
        """log p of each text in nats, its end included, or minus its bits per byte; more is better.

        Args:
            X: A list, array or column of texts.
        """
        check_is_fitted(self, "run_")
        run: Any = self.run_
        texts = several_texts(X)
        nats_P = np.array([one.log_prob for one in run.score(texts, oov=self.oov)])
        return nats_P / (math.log(2) * _sizes(texts)) if self.measure == "bits_per_byte" else nats_P

    def score(self, X: Texts, y: Any = None) -> float:
        """The total log p of the texts in nats, or minus their bits per byte together; more is better.

        Args:
            X: A list, array or column of texts.
            y: Ignored.
        """
        samples_P = self.score_samples(X)
        if self.measure == "log_prob":
            return float(samples_P.sum())
        sizes_P = _sizes(several_texts(X))
        return float((samples_P * sizes_P).sum() / sizes_P.sum())


def _sizes(texts: Sequence[str]) -> Array:
    """Bytes of each text, its newline included, P."""
    return np.array([len(text.encode()) + 1 for text in texts])
