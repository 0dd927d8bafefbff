"""The corpus of a classifier or a tagger: labelled texts or tagged sentences as tokens, in batches of equal length."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.processes import Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, TokenizerConfig, parse
from chainrule.data.batches import Batches
from chainrule.data.labels import Examples, LabelBatches, LabelledTexts, Numbers
from chainrule.data.pairs import Rows
from chainrule.data.store import TokenStore, open_store
from chainrule.data.tags import TaggedWords
from chainrule.errors import DataError
from chainrule.evaluation.labels import label_scores, tell
from chainrule.evaluation.tags import tag_figures
from chainrule.evaluation.text import package_version
from chainrule.registry import MODELS
from chainrule.tasks.language_model import Listener, Validator, fit_tokenizer, kept_tokenizers
from chainrule.tasks.presets import choose_tokenizer
from chainrule.text.formats.labels import Fields, LabelledFiles, Labels
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import Texts, join_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Vocabulary

MOST_HELD_OUT = 5000
"""Texts held out for validation at most, when none are given for it."""

Files = LabelledFiles | TaggedFiles


class Opened(NamedTuple):
    """Labelled files as tokens."""

    examples: LabelledTexts | TaggedWords
    fingerprint: str
    counts_V: NDArray[np.int64]


@dataclass
class LabelCorpus:
    """Labelled texts, or tagged sentences, to train on and to validate with."""

    tokenizer: Tokenizer
    options: TokenizerConfig
    train: Opened
    train_P: Numbers  # which of them are trained on
    valid: Opened
    valid_P: Numbers
    model_options: dict[str, Any]  # what only the data tells

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer.vocab_size, self.tokenizer.eos, self.train.counts_V)

    @property
    def tokens(self) -> int:
        """That are read in one epoch."""
        return int(self.train.examples.lengths()[self.train_P].sum())

    @property
    def signature(self) -> dict[str, str]:
        return {
            "data": self.train.fingerprint,
            "valid": self.valid.fingerprint,
            "tokenizer": f"{self.tokenizer.kind}#{self.tokenizer.fingerprint}",
        }

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def batches(self, config: RunConfig, processes: Processes) -> Batches:
        assert config.training.batch_size is not None
        return LabelBatches(
            self.train.examples,
            self.train_P,
            config.training.batch_size,
            seed=config.seed,
            rank=processes.rank,
            world=processes.world,
        )

    def validator(self, config: RunConfig) -> Validator:
        examples = self.valid.examples
        numbers_P = _first_tokens(examples, self.valid_P, config.training.valid_tokens)
        return lambda model: figures_of(model, examples, numbers_P)


def figures_of(model: Any, examples: LabelledTexts | TaggedWords, numbers_P: Numbers) -> dict[str, float]:
    """What a model is chosen by: nats a text or word, accuracy, and macro F1 or that of spans."""
    told = tell(model, examples, numbers_P)
    if isinstance(examples, TaggedWords):
        figures = tag_figures(told, examples)
        return {"loss": told.nats / told.asked, "accuracy": figures.accuracy, "f1": figures.whole.f1}
    targets, names = examples.targets()[numbers_P], examples.labels.names
    scores = label_scores(targets, told.chosen[numbers_P], len(names))
    return {"loss": told.nats / told.asked, "accuracy": scores.accuracy, "f1": scores.macro_f1}


def open_label_corpus(config: RunConfig, folder: RunFolder, listener: Listener) -> LabelCorpus:
    """The labelled texts, or tagged sentences, of a run, tokenised."""
    files = label_files(config, config.data.train, config.data.lines)
    labels = _training_labels(files, config.model.options.get("labels"))
    kept = kept_tokenizers(config, folder)
    if kept is not None:
        tokenizer, options = kept.tokenizer, kept.options
    else:
        tokenizer, options = _fit(config.tokenizer, files, listener)
    most = options_of(config).context
    train = open_labelled(files, labels, tokenizer, most, listener.tokenized)
    numbers_P: Numbers = np.arange(len(train.examples))
    if config.data.valid:
        valid = open_known(config, config.data.valid, config.data.valid_lines, labels, tokenizer)
        valid_P: Numbers = np.arange(len(valid.examples))
    else:
        valid, (numbers_P, valid_P) = train, hold_out(len(numbers_P), config.data.held_out, files.name)
    note_cut(train.examples, most, listener.note)
    told: dict[str, Any] = {"labels": list(labels.names)}
    if isinstance(files, LabelledFiles):
        told |= {"multi_label": labels.multiple, "pairs": files.paired}
    return LabelCorpus(tokenizer, options, train, numbers_P, valid, valid_P, told)


def options_of(config: RunConfig) -> Any:
    """The options of the run's model."""
    return parse(MODELS.get(config.model.name).make.Config, config.model.options, "model")


def label_files(config: RunConfig, paths: Sequence[str], most: int | None = None) -> Files:
    """The first `most` labelled texts, or tagged sentences, of some files, as this run reads them."""
    data = config.data
    fields = Fields(data.field, data.label_field, data.pair_field)
    if MODELS.get(config.model.name).make.of_words:
        return TaggedFiles(paths, fields=fields, most=most)
    return LabelledFiles(paths, fields=fields, several=bool(config.model.options.get("multi_label")), most=most)


def _training_labels(files: Files, known: Sequence[str] | None) -> Labels:
    """The labels of the training data, of which there must be two."""
    labels = files.labels(known)
    if len(labels.names) < 2:
        got = f"one label only, '{labels.names[0]}'" if labels.names else "no label"
        raise DataError(f"{files.name} has {got}: expected at least two to tell apart; add texts that have another.")
    return labels


def open_known(
    config: RunConfig, paths: Sequence[str], most: int | None, known: Labels, tokenizer: Tokenizer
) -> Opened:
    """Further labelled files of a run, whose labels must be among those it was trained with."""
    files = label_files(config, paths, most)
    labels = files.labels(known.names)
    if labels.multiple and not known.multiple:
        raise DataError(
            f"{files.name} gives labels as lists, but the training data one label a text; give one to each here too."
        )
    labels = replace(labels, multiple=known.multiple)
    return open_labelled(files, labels, tokenizer, options_of(config).context)


def open_labelled(
    files: Files, labels: Labels, tokenizer: Tokenizer, most: int | None, progress: Progress | None = None
) -> Opened:
    """Labelled files as tokens; `most` are read of one text."""
    if isinstance(files, TaggedFiles):
        store = open_store(files.words(spaced=takes_spaces(tokenizer)), tokenizer, progress=progress)
        filler = tokenizer.eos if tokenizer.unk is None else tokenizer.unk
        words = TaggedWords(Rows(store.tokens, tokenizer.eos), labels, filler, most)
        return Opened(words, _fingerprint([store], labels), np.asarray(store.counts_V))
    stores = [open_store(files.texts, tokenizer, progress=progress)]
    if (pairs := files.pairs) is not None:
        stores.append(open_store(pairs, tokenizer, progress=progress))
    rows = [Rows(store.tokens, tokenizer.eos) for store in stores]
    texts = LabelledTexts(rows[0], rows[1] if len(rows) > 1 else None, labels, most)
    counts_V = np.sum([store.counts_V for store in stores], axis=0)
    return Opened(texts, _fingerprint(stores, labels), counts_V)


def takes_spaces(tokenizer: Tokenizer) -> bool:
    """Whether a word in the middle of a line is read as it is read after a space, and otherwise than by itself."""
    begun = tokenizer.encode("a")
    return tokenizer.encode("a b")[len(begun) :] == tokenizer.encode(" b") != tokenizer.encode("b")


def _fingerprint(stores: Sequence[TokenStore], labels: Labels) -> str:
    """32 hexadecimal digits that change when any text or label does."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*(store.fingerprint for store in stores), *labels.names):
        digest.update(part.encode() + b"\0")
    digest.update(labels.ids_N.tobytes() + labels.ends_P.tobytes())
    return digest.hexdigest()


def label_signature(opened: Opened, tokenizer: Tokenizer) -> str:
    """What figures were measured on and with."""
    fields = {
        "data": opened.fingerprint[:8],
        "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        "chainrule": package_version(),
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def _fit(options: TokenizerConfig, files: Files, listener: Listener) -> tuple[Tokenizer, TokenizerConfig]:
    """A tokeniser fitted to the texts without their labels: words where nothing else was asked for."""
    if isinstance(files, TaggedFiles):
        texts = files.words(spaced=True)
    else:
        pairs = files.pairs
        texts = files.texts if pairs is None else join_texts(files.texts, pairs)
    if options.kind is None:
        options = _choose(options, texts, of_words=isinstance(files, TaggedFiles))
    return fit_tokenizer(options, texts, listener.note)


def _choose(options: TokenizerConfig, texts: Texts, *, of_words: bool) -> TokenizerConfig:
    """The encoder's own tokeniser; else words, or characters of Chinese: labelled texts are few, subwords want many."""
    if options.source is not None:
        return options.model_copy(update={"kind": options.source})
    if of_words:
        return options.model_copy(update={"kind": "word"})
    sample = next(texts.blocks()).data[:100_000].decode(errors="replace")
    chosen = choose_tokenizer(options, sample, 1 << 40).kind  # as if there were enough for any kind
    if chosen != "bpe":
        return options.model_copy(update={"kind": chosen})
    split = options.split if "split" in options.model_fields_set else "unicode"
    return options.model_copy(update={"kind": "word", "split": split})


def hold_out(examples: int, share: float, name: str) -> tuple[Numbers, Numbers]:
    """Which examples are trained on and which validate: some drawn at random, since files are often sorted by label.

    The draw is the same for every seed, so that runs with different ones can be compared.
    """
    if examples < 2:
        raise DataError(f"{name} holds one text only, so none can be held out; give more, or others with --valid.")
    held = min(MOST_HELD_OUT, math.ceil(examples * share))
    order_P = np.random.default_rng(0).permutation(examples)
    return np.sort(order_P[held:]), np.sort(order_P[:held])


def note_cut(examples: LabelledTexts | TaggedWords, most: int | None, note: Callable[[str], None]) -> None:
    """Nothing is cut silently."""
    if not (cut := examples.cut):
        return
    if isinstance(examples, TaggedWords):
        note(f"{cut:,} sentences are longer than the {most} tokens that the encoder reads, and read in pieces")
    else:
        note(
            f"{cut:,} of {len(examples):,} texts are longer than the {most} tokens that the encoder reads; what is "
            "beyond is left out"
        )


def _first_tokens(examples: Examples, numbers_P: Numbers, most: int) -> Numbers:
    """The first examples that have no more than so many tokens together, one at least."""
    sums_P = np.cumsum(examples.lengths()[numbers_P])
    return numbers_P[: max(1, int(np.searchsorted(sums_P, most, "right")))]
