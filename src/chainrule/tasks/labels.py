"""Labels of texts and tags of words: classification and sequence labelling, in batches of about equal length."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.processes import ALONE, Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import DataConfig, RunConfig, TokenizerConfig
from chainrule.data.batches import Batches
from chainrule.data.held_out import hold_out_examples
from chainrule.data.in_memory import Columns
from chainrule.data.labels import Examples, LabelBatches, LabelledTexts, class_weights
from chainrule.data.rows import Indices, Rows
from chainrule.data.store import TokenStore, open_store
from chainrule.data.tags import TaggedWords
from chainrule.errors import DataError
from chainrule.evaluation.labels import predict, score_labels
from chainrule.evaluation.measurement import format_signature
from chainrule.evaluation.tags import score_tags
from chainrule.evaluation.validation_budget import tokens_per_validation
from chainrule.registry import TASKS
from chainrule.tasks.presets import RATES
from chainrule.tasks.task import Corpus, CorpusSize, Listener, Task, ValidationData, Validator, saved_tokenizers
from chainrule.text.formats.labels import Fields, LabelledFiles, Labels
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import Texts, join_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.fit import PREPARED, choose_tokenizer, fit_tokenizer, is_prepared, sample_of
from chainrule.types import Vocabulary


class LabelledData(NamedTuple):
    """Labelled files as tokens."""

    examples: Any  # LabelledTexts or TaggedWords
    fingerprint: str
    counts_V: NDArray[np.int64]

    def signature(self, tokenizer: Tokenizer) -> str:
        """Identifies data, tokeniser and version of a measurement."""
        return format_signature(
            {"data": self.fingerprint[:8], "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}"}
        )


@dataclass
class LabelCorpus(Corpus):
    """Labelled texts, or tagged sentences, to train on and to validate with."""

    task: LabelTask
    train: LabelledData
    train_P: Indices  # which of `train` are used
    valid: LabelledData
    valid_P: Indices

    @property
    def vocabulary(self) -> Vocabulary:
        counts_V = self.train.counts_V
        if self.valid is self.train:  # of the tokens that are trained on
            held_out_V = np.bincount(self.valid.examples.tokens_of(self.valid_P), minlength=len(counts_V))
            counts_V = counts_V - held_out_V
        return Vocabulary(self.tokenizer.vocab_size, self.tokenizer.eos, counts_V)

    @property
    def validation_data(self) -> ValidationData:
        examples, unk = self.valid.examples, self.tokenizer.unk
        tokens_N = examples.tokens_of(self.valid_P)
        oov = None if unk is None else int(np.count_nonzero(tokens_N == unk))
        return ValidationData(self.valid is self.train, len(self.valid_P), self.task.unit, len(tokens_N), oov)

    @property
    def tokens(self) -> int:
        """Number of tokens read in one epoch."""
        return int(self.train.examples.lengths()[self.train_P].sum())

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"data": self.train.fingerprint, "valid": self.valid.fingerprint}

    def batches(self, config: RunConfig) -> Batches:
        assert config.training.batch_size is not None
        return LabelBatches(
            self.train.examples,
            self.train_P,
            config.training.batch_size,
            seed=config.seed,
        )

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        t = config.training
        assert t.batch_size is not None
        steps = len(self.train_P) / (t.batch_size * t.accumulate)
        most = tokens_per_validation(t, epoch_tokens=self.tokens, steps_per_epoch=steps)
        indices_P = spread_tokens(self.valid.examples, self.valid_P, most)
        return lambda model: self.task.figures(model, self.valid.examples, indices_P, processes)


class LabelTask(Task):
    """Shared by labels and tags: labelled files, and labels that only the data determine."""

    unit: ClassVar[str]  # what has labels
    metrics = ("loss", "accuracy", "f1")
    options = frozenset({"training.batch_size"})
    max_epochs = 20.0

    # What a subclass gives

    @abstractmethod
    def files(self, config: RunConfig, paths: Sequence[str], max_examples: int | None = None) -> Any:
        """The first `max_examples` examples of some files."""

    @abstractmethod
    def texts_of(self, files: Any) -> Texts:
        """The texts of some files without their labels, to fit a tokeniser to."""

    @abstractmethod
    def choose_tokenizer(self, options: TokenizerConfig, texts: Texts) -> TokenizerConfig:
        """The tokeniser options where no kind is given."""

    @abstractmethod
    def tokenize(
        self, files: Any, labels: Labels, tokenizer: Tokenizer, max_tokens: int | None, progress: Progress | None = None
    ) -> LabelledData:
        """Files as tokens; `max_tokens` are read of one text."""

    @abstractmethod
    def figures(self, model: Any, examples: Any, indices_P: Indices, processes: Processes) -> dict[str, float]:
        """The metrics that can select the checkpoint; the processes share the examples."""

    @abstractmethod
    def data_options(self, files: Any, labels: Labels) -> dict[str, Any]:
        """Model options that only the data determine."""

    @abstractmethod
    def note_cut(self, examples: Any, max_tokens: int | None, note: Callable[[str], None]) -> None:
        """Report texts that are longer than the model reads."""

    # What they share

    def fits(self, paths: Sequence[str]) -> bool:
        return True

    def columns(self, data: DataConfig) -> Columns:
        """A row is (label, text), or (label, text, second text), as in a .tsv file."""
        row = (data.label_field, data.field, data.pair_field)
        return Columns(row, (data.field, data.label_field), frozenset({data.pair_field}))

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> LabelCorpus:
        files = self.files(config, config.data.train, config.data.lines)
        labels = _training_labels(files, config.model.options.get("labels"))
        kept_P = None if config.data.valid else trained_on(len(labels), config.data.held_out, files.name)
        if (saved := saved_tokenizers(config, folder)) is not None:
            tokenizer, options = saved.tokenizer, saved.config
        else:
            tokenizer, options = self._fit_tokenizer(config, files if kept_P is None else files.part(kept_P), listener)
        max_tokens = model_options(config).context
        train = self.tokenize(files, labels, tokenizer, max_tokens, listener.tokenized)
        train_P: Indices = np.arange(len(train.examples))
        if config.data.valid:
            valid = self.open_known(config, config.data.valid, config.data.valid_lines, labels, tokenizer)
            valid_P: Indices = np.arange(len(valid.examples))
        else:
            assert kept_P is not None
            kept_P = kept_P[train.examples.texts()]
            valid, train_P, valid_P = train, np.flatnonzero(kept_P), np.flatnonzero(~kept_P)
        self.note_cut(train.examples, max_tokens, listener.note)
        data_options = {"labels": list(labels.names), **self.data_options(files, labels)}
        if (weight := config.model.options.get("class_weight")) is not None:
            data_options["class_weight"] = class_weights(weight, labels, train_P)
        return LabelCorpus(tokenizer, options, self, train, train_P, valid, valid_P, model_options=data_options)

    def _fit_tokenizer(self, config: RunConfig, files: Any, listener: Listener) -> tuple[Tokenizer, TokenizerConfig]:
        """A tokeniser fitted to the texts of some files."""
        texts, options, reason = self.texts_of(files), config.tokenizer, ""
        if options.kind is None:
            options = self.choose_tokenizer(options, texts)
            reason = PREPARED if is_prepared(sample_of(texts)) else "the default for labelled text"
        return fit_tokenizer(options, texts, listener.note, reason=reason)

    def open_known(
        self, config: RunConfig, paths: Sequence[str], max_examples: int | None, known: Labels, tokenizer: Tokenizer
    ) -> LabelledData:
        """Further labelled files of a run, whose labels must be among those it was trained with."""
        files = self.files(config, paths, max_examples)
        labels = files.labels(known.names)
        if labels.multiple and not known.multiple:
            raise DataError(
                f"{files.name} has lists of labels, but the training data has one label per text; give one label here"
            )
        labels = replace(labels, multiple=known.multiple)
        return self.tokenize(files, labels, tokenizer, model_options(config).context)

    def training_defaults(self, config: RunConfig, size: CorpusSize, model: dict[str, Any]) -> dict[str, Any]:
        """Some passes over the examples, a validation after each, until three brought no improvement."""
        lr = 1e-3 if config.model.options.get("pretrained") else RATES["adamw"]
        return {"batch_size": 32, "optimizer": "adamw", "lr": lr, "validations": 20, "patience": 3}


@TASKS.register("labels", kind="classifier")
class TextLabels(LabelTask):
    """Texts, or pairs of texts, with one label or several."""

    unit = "text"

    def files(self, config: RunConfig, paths: Sequence[str], max_examples: int | None = None) -> LabelledFiles:
        multi_label = bool(config.model.options.get("multi_label"))
        return LabelledFiles(paths, fields=_fields(config), multi_label=multi_label, max_examples=max_examples)

    def texts_of(self, files: LabelledFiles) -> Texts:
        second = files.pairs
        return files.texts if second is None else join_texts(files.texts, second)

    def choose_tokenizer(self, options: TokenizerConfig, texts: Texts) -> TokenizerConfig:
        """The encoder's own tokeniser; else words, or Chinese characters: subwords need more text than labelled."""
        if options.source is not None:
            return options.model_copy(update={"kind": options.source})
        chosen = choose_tokenizer(options, sample_of(texts), 1 << 40).kind  # as if there were text for any kind
        if chosen != "bpe":
            return options.model_copy(update={"kind": chosen})
        split = options.split if "split" in options.model_fields_set else "unicode"
        return options.model_copy(update={"kind": "word", "split": split})

    def tokenize(
        self,
        files: LabelledFiles,
        labels: Labels,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        progress: Progress | None = None,
    ) -> LabelledData:
        stores = [open_store(files.texts, tokenizer, progress=progress)]
        if (second := files.pairs) is not None:
            stores.append(open_store(second, tokenizer, progress=progress))
        rows = [Rows(store.tokens, tokenizer.eos) for store in stores]
        texts = LabelledTexts(rows[0], rows[1] if len(rows) > 1 else None, labels, max_tokens)
        counts_V = np.sum([store.counts_V for store in stores], axis=0)
        return LabelledData(texts, _fingerprint(stores, labels), counts_V)

    def figures(
        self, model: Any, examples: LabelledTexts, indices_P: Indices, processes: Processes
    ) -> dict[str, float]:
        predictions = predict(model, examples, indices_P, processes=processes)
        targets, names = examples.targets()[indices_P], examples.labels.names
        scores = score_labels(targets, predictions.predicted[indices_P], len(names))
        return {"loss": predictions.nats / predictions.items, "accuracy": scores.accuracy, "f1": scores.macro_f1}

    def data_options(self, files: LabelledFiles, labels: Labels) -> dict[str, Any]:
        return {"multi_label": labels.multiple, "pairs": files.paired}

    def note_cut(self, examples: LabelledTexts, max_tokens: int | None, note: Callable[[str], None]) -> None:
        if cut := examples.cut:
            note(f"{cut:,} of {len(examples):,} texts are longer than {max_tokens} tokens; the encoder reads no more")


@TASKS.register("tags", kind="classifier")
class WordTags(LabelTask):
    """Sentences with one tag per word."""

    unit = "sentence"

    def files(self, config: RunConfig, paths: Sequence[str], max_examples: int | None = None) -> TaggedFiles:
        return TaggedFiles(paths, fields=_fields(config), max_examples=max_examples)

    def texts_of(self, files: TaggedFiles) -> Texts:
        return files.words(spaced=True)

    def choose_tokenizer(self, options: TokenizerConfig, texts: Texts) -> TokenizerConfig:
        """The encoder's own tokeniser; else words."""
        return options.model_copy(update={"kind": options.source or "word"})

    def tokenize(
        self,
        files: TaggedFiles,
        labels: Labels,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        progress: Progress | None = None,
    ) -> LabelledData:
        store = open_store(files.words(spaced=tokenizer.spaces_matter), tokenizer, progress=progress)
        words = tagged_words(Rows(store.tokens, tokenizer.eos), labels, tokenizer, max_tokens)
        return LabelledData(words, _fingerprint([store], labels), np.asarray(store.counts_V))

    def figures(self, model: Any, examples: TaggedWords, indices_P: Indices, processes: Processes) -> dict[str, float]:
        predictions = predict(model, examples, indices_P, processes=processes)
        figures = score_tags(predictions, examples)
        return {"loss": predictions.nats / predictions.items, "accuracy": figures.accuracy, "f1": figures.overall.f1}

    def data_options(self, files: TaggedFiles, labels: Labels) -> dict[str, Any]:
        return {}

    def note_cut(self, examples: TaggedWords, max_tokens: int | None, note: Callable[[str], None]) -> None:
        if cut := examples.cut:
            note(f"{cut:,} sentences are longer than {max_tokens} tokens; the encoder reads them in parts")


def tagged_words(rows: Rows, labels: Labels, tokenizer: Tokenizer, max_tokens: int | None) -> TaggedWords:
    """Words of sentences, one per row; a word without tokens is read as unknown."""
    filler = tokenizer.eos if tokenizer.unk is None else tokenizer.unk
    return TaggedWords(rows, labels, filler, max_tokens)


def trained_on(count: int, share: float, name: str) -> NDArray[np.bool_]:
    """Which of `count` texts or sentences are trained on, the others being held out."""
    kept_P = np.ones(count, bool)
    kept_P[hold_out_examples(count, share, name)[1]] = False
    return kept_P


def _fields(config: RunConfig) -> Fields:
    return Fields(config.data.field, config.data.label_field, config.data.pair_field)


def _training_labels(files: LabelledFiles | TaggedFiles, known: Sequence[str] | None) -> Labels:
    """The labels of the training data; there must be at least two."""
    labels = files.labels(known)
    if len(labels.names) < 2:
        got = f"one label only, '{labels.names[0]}'" if labels.names else "no label"
        raise DataError(f"{files.name} has {got}: expected at least two; add texts with another label.")
    return labels


def _fingerprint(stores: Sequence[TokenStore], labels: Labels) -> str:
    """32 hexadecimal digits that change when any text or label does."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*(store.fingerprint for store in stores), *labels.names):
        digest.update(part.encode() + b"\0")
    digest.update(labels.ids_N.tobytes() + labels.ends_P.tobytes())
    return digest.hexdigest()


def spread_tokens(examples: Examples, indices_P: Indices, max_tokens: int) -> Indices:
    """Examples with about `max_tokens` tokens in total at most, evenly spread, as files are often sorted by label."""
    total = int(examples.lengths()[indices_P].sum())
    if total <= max_tokens:
        return indices_P
    count = max(1, len(indices_P) * max_tokens // total)
    return indices_P[np.linspace(0, len(indices_P) - 1, count).astype(np.int64)]
