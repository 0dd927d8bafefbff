"""A task owns what differs by the kind of data: its corpus, its defaults, and the options that apply to it.

The registration of a model names its task. A new task is one file here, with a class registered in `TASKS`, and one
run class in runs/, registered in `RUNS` under the same name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from chainrule.base.grammar import plural
from chainrule.base.processes import ALONE, Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import DataConfig, RunConfig, TokenizerConfig
from chainrule.data.batches import Batches
from chainrule.data.in_memory import Columns
from chainrule.errors import ConfigError
from chainrule.registry import MODELS, OBJECTIVES, TASKS
from chainrule.text.formats.pairs import COLUMN_SUFFIXES
from chainrule.text.sources import kind_of
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Preferences, Vocabulary

Validator = Callable[[Any], dict[str, float]]
"""Measures a model: its `loss` in nats per token, and other metrics that can select the checkpoint."""

TASK_OPTIONS = {
    "training.batching": "contiguous text or blocks",
    "training.batch_size": "the number of rows per batch",
    "training.length": "the tokens per row",
    "training.max_tokens": "the size of a batch of pairs",
    "data.prefix": "the prefix of every source",
    "data.max_length": "the length of pairs",
    "data.max_ratio": "the length ratio of pairs",
    "decoding.num_beams": "the beam width of translations",
    "decoding.length_penalty": "the length penalty of translations",
}
"""Options that only some tasks use, and what they set. Each task lists those that apply to it."""


@dataclass
class Listener:
    """Receives messages and progress while a corpus is opened. The default ignores them."""

    note: Callable[[str], None] = lambda text: None
    tokenized: Progress = lambda done, whole: None


class CorpusSize(NamedTuple):
    """What default options depend on."""

    tokens: int  # predicted in one epoch
    vocabulary: int


class ValidationData(NamedTuple):
    """The data that a training is validated with."""

    held_out: bool  # out of the training data; False: given
    items: int  # how many of `unit`
    unit: str  # bytes, pairs, texts or sentences
    tokens: int
    oov: int | None  # tokens that are unknown to the tokeniser; None: it knows every text

    @property
    def oov_rate(self) -> float | None:
        """Share of the tokens that are unknown."""
        return None if self.oov is None else self.oov / max(1, self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        return {**self._asdict(), "oov_rate": self.oov_rate}

    def __str__(self) -> str:
        known = "" if self.oov_rate is None else f"; {self.oov_rate:.2%} of {self.tokens:,} tokens are unknown words"
        return f"validation: {plural(self.items, self.unit)} {'held out' if self.held_out else 'given'}{known}"


@dataclass
class Corpus:
    """Training and validation data of one run. Subclasses hold the data and make batches of it."""

    tokenizer: Tokenizer  # of the target, where there is a source
    tokenizer_config: TokenizerConfig  # with which the tokeniser was fitted
    source_tokenizer: Tokenizer | None = field(default=None, kw_only=True)  # None: the same
    model_options: dict[str, Any] = field(default_factory=dict, kw_only=True)  # options that only the data determine

    @property
    def vocabulary(self) -> Vocabulary:
        raise TypeError(f"{type(self).__name__} must define vocabulary")

    @property
    def tokens(self) -> int:
        """Number of tokens predicted in one epoch."""
        raise TypeError(f"{type(self).__name__} must define tokens")

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the data to train on (`data`) and to validate with (`valid`)."""
        raise TypeError(f"{type(self).__name__} must define fingerprints")

    @property
    def validation_data(self) -> ValidationData | None:
        """What the training is validated with; None: nothing."""
        return None

    @property
    def signature(self) -> dict[str, str]:
        """Identifies data and tokenisers."""
        signature = {**self.fingerprints, "tokenizer": _identity(self.tokenizer)}
        if self.source_tokenizer is not None:
            signature["source_tokenizer"] = _identity(self.source_tokenizer)
        return signature

    def save(self, folder: Path) -> None:
        """Write the tokenisers into a run folder."""
        self.tokenizer.save(folder)
        if self.source_tokenizer is not None:
            self.source_tokenizer.save(folder / "source")

    def batches(self, config: RunConfig) -> Batches:
        """The training batches; several processes share their rows."""
        raise TypeError(f"{type(self).__name__} must define batches")

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        """Measures a model on the validation data during training; the processes, which all call it, share the data."""
        raise TypeError(f"{type(self).__name__} must define validator")

    def reward(self, name: str) -> Callable[[Any, Any], Any]:
        """A reward of generated token rows given reference rows, where the task has references."""
        raise TypeError(f"{type(self).__name__} has no references to compute a reward from")


def _identity(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}#{tokenizer.fingerprint}"


class Task(ABC):
    """One kind of data and of answer. Instances have no state."""

    metrics: ClassVar[tuple[str, ...]] = ("loss",)  # that can select the checkpoint
    rewarded: ClassVar[bool] = False  # whether objectives may sample outputs and reward them
    scores_text: ClassVar[bool] = False  # whether it has bits per byte
    options: ClassVar[frozenset[str]] = frozenset()  # of the names in `TASK_OPTIONS`, those that apply
    max_epochs: ClassVar[float] = 60.0  # limit on passes over a small corpus when no budget is given

    # Data

    def fits(self, paths: Sequence[str]) -> bool:
        """Whether data files look like the data of this task."""
        return not look_like_pairs(paths)

    def columns(self, data: DataConfig) -> Columns:
        """The columns that are read of data in memory."""
        return Columns((data.field,), (data.field,))

    @abstractmethod
    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> Corpus:
        """The data of a run, tokenised with the tokeniser of `folder` if it has one, else with a fitted one."""

    def with_encoder_tokenizer(self, options: TokenizerConfig, tokenizer: str) -> TokenizerConfig:
        """The tokeniser options of a model that reads its text with the tokeniser of a pretrained encoder."""
        return options.model_copy(update={"kind": options.kind or tokenizer})

    # Options

    def check(self, config: RunConfig) -> None:
        """Refuse options that do not apply to this task."""
        training, data = config.training, config.data
        if training.select not in self.metrics:
            raise ConfigError(
                f"training.select = '{training.select}', but {config.model.name} reports "
                f"{' and '.join(self.metrics)}; choose one of these"
            )
        if data.valid_lines and not data.valid:
            raise ConfigError("data.valid_lines needs a validation text; give one with --valid")
        for name, meaning in TASK_OPTIONS.items():
            section, _, option = name.partition(".")
            given = getattr(config, section)
            if (
                name not in self.options
                and option in given.model_fields_set
                and getattr(given, option) not in (None, "")
            ):
                raise ConfigError(f"{name} sets {meaning} and has no effect on {config.model.name}; leave it out")

    def check_window(self, config: RunConfig, window: int | None) -> None:
        """Refuse training rows that are longer than the model can read, where rows are cut from a text."""
        return

    def carries_state(self, config: RunConfig) -> bool:
        """Whether training carries a model's state from one batch to the next."""
        return False

    def model_defaults(self, config: RunConfig, size: CorpusSize, width: int, dropout: float) -> dict[str, Any]:
        """Default sizes of the model, for the options that it has."""
        prefers: Preferences = MODELS.get(config.model.name).make.prefers
        defaults = {"embedding": width, "hidden": width, "dropout": min(dropout, prefers.max_dropout)}
        if prefers.context_by_vocabulary:
            defaults["context"] = span_of(size)
        return defaults

    def training_defaults(self, config: RunConfig, size: CorpusSize, model: dict[str, Any]) -> dict[str, Any]:
        """Default options of the training, given the options of the model."""
        raise TypeError(f"{type(self).__name__} must define training_defaults")


def span_of(size: CorpusSize) -> int:
    """How many tokens a parallel model reads at once: characters carry less information than words."""
    return 128 if size.vocabulary < 512 else 64


def task_of(config: RunConfig) -> Task:
    """The task that prepares the data of a run: that of its objective where it has a special one, else its model's."""
    objective = OBJECTIVES.get(config.objective.name).task
    return get_task(objective) if objective else model_task(config.model.name)


def model_task(model: str) -> Task:
    """The task of a registered model."""
    return get_task(MODELS.get(model).task)


def get_task(name: str) -> Task:
    """A registered task."""
    task: Task = TASKS.get(name).make()
    return task


def form_for_data(model: str, paths: Sequence[str]) -> str:
    """The form of a model that fits the data: `at` for pairs is `seq2seq-at`, `hybrid` for one text is `hybrid-lm`."""
    counterpart = MODELS.get(model).counterpart
    if not paths or counterpart is None or model_task(model).fits(paths):
        return model
    return counterpart


def look_like_pairs(paths: Sequence[str]) -> bool:
    """train.en and train.de, or pairs.tsv."""
    parallel = len(paths) == 2 and _languages(Path(paths[0]), Path(paths[1]))
    return parallel or any(kind_of(Path(path)) in COLUMN_SUFFIXES for path in paths)


def _languages(first: Path, second: Path) -> bool:
    """train.en and train.de."""
    return (
        first.stem == second.stem
        and all(path.suffix[1:].isalpha() and len(path.suffix) == 3 for path in (first, second))
        and first != second
    )


# Tokenisers of a run that is resumed or started from


@dataclass(frozen=True)
class SavedTokenizers:
    """The tokeniser of a run's text or target, and of its source if that has its own."""

    tokenizer: Tokenizer
    source: Tokenizer | None
    config: TokenizerConfig


def saved_tokenizers(config: RunConfig, folder: RunFolder) -> SavedTokenizers | None:
    """The tokenisers of the run that is resumed, else of the run it starts from, else None."""
    for place in (folder, RunFolder.open(config.init) if config.init else None):
        if place is not None and place.exists() and (place.path / "tokenizer.json").exists():
            return SavedTokenizers(place.read_tokenizer(), place.read_source_tokenizer(), place.read_config().tokenizer)
    if config.init:
        RunFolder.open(config.init).read_tokenizer()  # raises the error that explains what is missing
    return None
