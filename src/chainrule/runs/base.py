"""A run: a trained model with its tokeniser and its folder. What it can do comes with the run class of its task."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import choose_device, physical_cores
from chainrule.base.lazy import torch
from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.checkpoint.build import adjust, load_model, round_weights
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.data.in_memory import Columns, Data, Texts, corpus_paths, texts_in
from chainrule.errors import ConfigError
from chainrule.evaluation.measurement import Measurement
from chainrule.inference.embed import Pooling, embed_lines
from chainrule.inference.sentence_search import search_lines
from chainrule.inference.subject import TextModel
from chainrule.inference.word_table import Neighbour, WordTable, table_of
from chainrule.models.options import LiveOption
from chainrule.registry import MODELS, RUNS
from chainrule.runs.verbs import names_without_vectors, verbs_of
from chainrule.tasks.task import Corpus, Task, model_task
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.sources import SourceName
from chainrule.text.tokenizers import Tokenizer

Paths = str | Path | Sequence[str | Path]

FLAGS = {"references": "reference"}
"""Options whose name on the command line is not that in Python."""


class MissingVerbError(ConfigError, AttributeError):
    """A run was asked for a verb that does not apply to its model."""


class Run:
    """What all runs share: folder, configuration, model, information, and vectors where the model has some."""

    verbs: ClassVar[tuple[str, ...]] = ("info", "embed", "neighbours")  # on the command line
    shows_output: ClassVar[bool] = True  # whether the model has an output layer to choose

    def __init__(self, path: str | Path, *, device: str = "auto") -> None:
        self.folder = RunFolder.open(path)
        self.config: RunConfig = self.folder.read_config()
        self._device = device
        self.shown_name = str(self.folder.given)  # in messages
        self.corpus: Corpus | None = None  # what it was trained on, if that was in this process
        self.validation_note = ""  # which part of the held-out data `validation` scored; empty: all
        self.adjusted: dict[str, Any] = {}  # options that `adjust` has set

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder.given)!r}, model={self.config.model.name!r})"

    @property
    def name(self) -> str:
        """Folder, or what a server calls it, and model: for messages."""
        return f"{self.shown_name} ({self.config.model.name})"

    @property
    def task(self) -> Task:
        """The task of its model."""
        return model_task(self.config.model.name)

    @cached_property
    def device(self) -> torch.device:
        """Where its model computes."""
        return choose_device(self._device)

    @cached_property
    def precision(self) -> str:
        """The precision of its weights: as they are stored, unless `load` chose another."""
        counted = MODELS.get(self.config.model.name).make.stores_arrays
        return "float32" if counted else self.folder.stored_precision()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of its text, or of its target."""
        return self.folder.read_tokenizer()

    @cached_property
    def model(self) -> Any:
        """The trained model, in evaluation mode; loaded when it is first used."""
        model = load_model(self.folder, self.tokenizer)
        if self.precision == "int8":
            round_weights(model)
        if model.arrays is not None:
            return model
        if torch.get_num_threads() != physical_cores():
            torch.set_num_threads(physical_cores())
        return model.to(self.device)

    @property
    def subject(self) -> TextModel:
        """Model and tokeniser, as inference takes them."""
        return TextModel(self.model, self.tokenizer, self.name)

    def keep(self, model: Any, corpus: Corpus | None) -> None:
        """Use a model that was just trained, and its data, instead of loading them again.

        Args:
            model: The trained model. None: it is loaded when it is used.
            corpus: The data with its tokenisers. None: they are read from the folder.
        """
        if corpus is not None:
            self.tokenizer, self.corpus = corpus.tokenizer, corpus
        if model is not None:
            self.model = model if model.arrays is not None else model.to(self.device)

    @property
    def is_main_process(self) -> bool:
        """False in all but one of the processes that torchrun starts."""
        return int(os.environ.get("RANK", "0")) == 0

    @property
    def result(self) -> dict[str, Any]:
        """The result of the training; empty while it is unfinished."""
        return self.folder.read_result() or {}

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        count: int = self.model.parameter_count
        return count

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that change with the weights or the tokeniser."""
        digest = hashlib.blake2b(digest_size=8)
        with self.folder.model_path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        digest.update(self.tokenizer.fingerprint.encode())
        return digest.digest()

    def files(self, data: Data, field: str | None = None) -> list[SourceName]:
        """The files of a corpus, which may be in memory.

        Args:
            data: A path, several paths, or data in memory.
            field: Name of the column or JSON field with the texts. None: that of the training.
        """
        config = self.config.data if field is None else self.config.data.model_copy(update={"field": field})
        return corpus_paths(data, self.task.columns(config))

    def adjust(self, **options: Any) -> None:
        """Set options of the model that need no training, such as gamma of `hybrid`; the folder is not changed.

        Args:
            **options: The options by name, for example gamma=0.2.
        """
        adjust(self.model, options)
        self.adjusted |= options

    def validation(self) -> Measurement:
        """What a training reports of its validation data when it has ended."""
        raise TypeError(f"{type(self).__name__} must define validation")

    def info(self) -> dict[str, Any]:
        """Model, tokeniser, size, result of the training, and signature."""
        trained = MODELS.get(self.config.model.name).fitting == "gradients"
        return {
            "run": str(self.folder.given),
            "model": self.config.model.name,
            **({"output": self.config.output.name} if trained and self.shows_output else {}),
            "tokenizer": self.tokenizer.kind,
            "vocab_size": self.tokenizer.vocab_size,
            "parameters": self.parameters,
            **{key: value for key, value in self.result.items() if key not in ("parameters", "budget", "validation")},
            "signature": self.folder.read_signature(),
        }

    # Vectors

    def embed(
        self, texts: Texts, *, pooling: Pooling = "mean", normalise: bool = False, layer: int | None = None
    ) -> Array:
        """The vector of each text, from those of its tokens.

        Args:
            texts: One text, or a list, iterator, column or frame of texts.
            pooling: How the vectors of the tokens are combined: "mean", "max", "first" or "last".
            normalise: Whether each vector is scaled to length one.
            layer: The layer whose states are used: 0 is the embedding, -1 the last layer. None: the last.

        Returns:
            An array in float32: D for one text, else ND with one row per text.
        """
        lines = texts_in(texts, self.config.data.field)
        found = list(embed_lines(self.subject, lines, pooling=pooling, normalise=normalise, layer=layer))
        if isinstance(texts, str):
            return found[0]
        return np.stack(found) if found else np.zeros((0, 0), np.float32)

    @cached_property
    def word_table(self) -> WordTable:
        """The words of the run and their vectors; `word_table.map()` is a map of them in two dimensions."""
        return table_of(self.subject)

    def neighbours(self, word: str, top: int = 10) -> Results[Neighbour]:
        """The words whose vectors have the largest cosine with that of a word.

        Args:
            word: A word with a vector.
            top: Number of neighbours.
        """
        return self.word_table.neighbours(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> Results[Neighbour]:
        """The words nearest to a - b + c: king - man + woman.

        Args:
            a: The first word, which is added.
            b: The second word, which is subtracted.
            c: The third word, which is added.
            top: Number of words.
        """
        return self.word_table.analogy(a, b, c, top)

    def search(
        self,
        query: Texts,
        texts: Data,
        *,
        top: int = 10,
        pooling: Pooling = "mean",
        layer: int | None = None,
        field: str | None = None,
    ) -> Results[Any]:
        """The lines of a corpus whose vectors are nearest to that of a query, while the corpus is being read.

        Args:
            query: One text, or a list, iterator, column or frame of texts.
            texts: The corpus to search: a path, several paths, or a list, column or frame of texts.
            top: Number of lines for each query.
            pooling: How the vectors of the tokens are combined: "mean", "max", "first" or "last".
            layer: The layer whose states are used: 0 is the embedding, -1 the last layer. None: the last.
            field: Name of the column or JSON field with the texts. None: that of the training.

        Returns:
            The lines as `Match` with text, cosine and line number, best first; for several queries a list of these.
        """
        field = field or self.config.data.field
        corpus = open_texts(corpus_paths(texts, Columns((field,), (field,))), field=field)
        queries_QD = np.atleast_2d(self.embed(query, pooling=pooling, layer=layer))
        found = search_lines(self.subject, queries_QD, lines_in(corpus), top=top, pooling=pooling, layer=layer)
        return found[0] if isinstance(query, str) else Results(found)

    # Verbs of other runs

    @property
    def available_verbs(self) -> tuple[str, ...]:
        """The verbs of its task, and those of its model beside them."""
        return verbs_of(MODELS.get(self.config.model.name))

    def missing(self, verb: str) -> MissingVerbError:
        """The error for a verb that this run does not have.

        Args:
            verb: The verb, for example "translate".
        """
        if verb in self.available_verbs:
            like = [name for name in dir(self) if name.startswith(verb)]
            hint = f"use {' or '.join(like)}" if like else f"help({type(self).__name__}) lists the methods of its verbs"
            return MissingVerbError(f"{self.name} has no method {verb}; {hint}")
        models = [entry.name for entry in MODELS.entries() if verb in verbs_of(entry)]
        usable = f"{verb} works with {', '.join(models)}; " if models else ""
        return MissingVerbError(f"{self.name} has no {verb}; {usable}this run has {', '.join(self.available_verbs)}")

    def __dir__(self) -> list[str]:
        """The methods that apply to this run, for completion: without vectors where its model has none."""
        hidden = {"keep", "missing", "check_evaluate", "evaluate_options", "is_main_process"}
        hidden |= names_without_vectors(MODELS.get(self.config.model.name).make)
        return sorted(set(super().__dir__()) - hidden)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property failed with an AttributeError of its own
                return object.__getattribute__(self, name)
            if not name.startswith("_") and any(hasattr(entry.make, name) for entry in RUNS.entries()):
                raise self.missing(name)
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")


class ValidationMeasures(NamedTuple):
    """Functions that measure a run as it is set now, by name; the data they measure it on, and its signature."""

    measures: dict[str, Callable[[], float]]
    data: str
    signature: str


class EvaluatedRun(Run):
    """A run that is measured on data."""

    decoding_options: ClassVar[tuple[LiveOption, ...]] = ()  # defaults of its search that can be tuned
    decoding_defaults: ClassVar[Any] = None  # the values of these options where none are set

    verbs: ClassVar[tuple[str, ...]] = ("eval", *Run.verbs)
    unit: ClassVar[str] = "tokens"  # what the progress of a measurement counts

    def evaluate(self, texts: Data, *, progress: Progress | None = None) -> Any:
        """The measures of the run on a corpus, with protocol and signature.

        Args:
            texts: A path, several paths, or rows, columns or a frame in memory.
            progress: Called with the amount done and the total.
        """
        raise TypeError(f"{type(self).__name__} must define evaluate")

    def evaluate_held_out(self) -> Any:
        """The same on the validation data of the training: those given, or those held out."""
        raise TypeError(f"{type(self).__name__} must define evaluate_held_out")

    def validation_measures(self, texts: Data | None = None, limit: int | None = None) -> ValidationMeasures:
        """What `tune` optimises, on the first `limit` tokens or pairs of data, by default of the held-out data.

        Args:
            texts: The data, as in `evaluate`. None: the held-out data.
            limit: Number of tokens or pairs, the first ones. None: all.
        """
        raise self.missing("tune")

    def check_evaluate(self, options: Mapping[str, Any]) -> None:
        """Refuse options that `evaluate` does not take.

        Args:
            options: The options by name.
        """
        known = self.evaluate_options()
        for name in options:
            if name not in known:
                flag = FLAGS.get(name, name.replace("_", "-"))
                raise ConfigError(f"--{flag} does not apply to {self.name}; leave it out")

    def evaluate_options(self) -> set[str]:
        """The names of the options that `evaluate` takes."""
        return set(inspect.signature(self.evaluate).parameters)


def path_strings(paths: Paths) -> list[str]:
    """One path or several as a list of strings."""
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]
