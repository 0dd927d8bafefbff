"""Trained classifiers and taggers: what `load` gives for a run whose model tells labels.

run = cr.load("runs/topics")
for best in run.classify(["one text", "another"]): print(best[0].label, best[0].probability)
run.evaluate("test.tsv").accuracy

run = cr.load("runs/names")
for tags in run.tag([["Ada", "Lovelace", "wrote", "it"]]): print(tags)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.config import RunConfig
from chainrule.data.batches import to_device
from chainrule.data.labels import LabelBatches, LabelledTexts, unlabelled
from chainrule.data.pairs import Rows
from chainrule.data.tags import TaggedWords
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.labels import ROWS, ClassEvaluation, class_evaluation, tell
from chainrule.evaluation.tags import TagEvaluation, tag_evaluation
from chainrule.runs.language_model import Paths, Run, path_strings
from chainrule.tasks.labels import (
    Opened,
    hold_out,
    label_signature,
    note_cut,
    open_known,
    options_of,
    takes_spaces,
)
from chainrule.text.formats.labels import Labels
from chainrule.text.formats.tags import word_line
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer

WINDOW = 16 * ROWS
"""Texts that are read before they are sorted by length and labelled; the first windows are smaller."""


@dataclass(frozen=True)
class Labelled:
    """A label with its probability."""

    label: str
    probability: float


class LabelRun(Run):
    """What classifiers and taggers share: labels, and files of labelled text."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What it can tell."""
        return tuple(options_of(self.config).labels)

    @property
    def _most(self) -> int | None:
        most: int | None = options_of(self.config).context
        return most

    def _opened(self, texts: Paths, field: str | None, most: int | None = None) -> Opened:
        """Labelled files as this run reads them."""
        config = _with_field(self.config, field)
        known = Labels(self.labels, np.zeros(0, np.int32), np.zeros(0, np.int64), self._multiple)
        opened = open_known(config, path_strings(texts), most, known, self.tokenizer)
        note_cut(opened.examples, self._most, _warn)
        return opened

    @property
    def _multiple(self) -> bool:
        return bool(self.config.model.options.get("multi_label"))

    def _held_out(self) -> tuple[Opened, Any]:
        """The validation data of the training, and which of it."""
        data = self.config.data
        if data.valid:
            opened = self._opened(data.valid, None, data.valid_lines)
            return opened, np.arange(len(opened.examples))
        opened = self._opened(data.train, None, data.lines)
        return opened, hold_out(len(opened.examples), data.held_out, data.train[0])[1]

    def evaluate_held_out(self) -> Any:
        """The same as `evaluate` on the validation data of the training: those given, or those held out."""
        return self._measure(*self._held_out(), None)

    def validation(self) -> Any:
        """What a training tells of its validation data when it has ended."""
        return self.evaluate_held_out()

    def _measure(self, opened: Opened, numbers_P: Any, progress: Progress | None) -> Any:
        raise TypeError(f"{type(self).__name__} must define _measure")

    def info(self) -> dict[str, Any]:
        """What this run is."""
        told = super().info()
        told.pop("output")  # which the model has no use for
        return {**told, "labels": list(self.labels)}

    # What it does not do

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        verb = "tag" if self.config.model.name == "tagger" else "classify"
        raise ConfigError(
            f"{self.folder.path} is a {self.config.model.name}, which tells labels and does not write or score text; "
            f"use chainrule {verb}, or a language model"
        )

    generate = stream = compress = decompress = score = score_text = _refuse
    open = open_held_out = generation_speed = _refuse


class ClassifierRun(LabelRun):
    """A trained classifier with its tokeniser and its folder."""

    counted = "texts"

    def classify(self, texts: Iterable[str | tuple[str, str]], top: int = 1) -> Iterator[list[Labelled]]:
        """The `top` labels of each text, or pair of texts, the most probable first, in order.

        Texts are read in windows, the first of few, so that answers come while others are still being read.
        """
        if top < 1:
            raise ConfigError(f"got top = {top}: expected 1 or more labels")
        for window in _windows(texts):
            for row_L in self._probabilities(window):
                best = np.argsort(-row_L, kind="stable")[:top]
                yield [Labelled(self.labels[number], float(row_L[number])) for number in best]

    def _probabilities(self, texts: Sequence[str | tuple[str, str]]) -> Any:
        """p of each label, PL."""
        examples = self._texts(texts)
        note_cut(examples, self._most, _warn)
        probabilities_PL = np.zeros((len(texts), len(self.labels)))
        with evaluating(self.model):
            for group in LabelBatches(examples, np.arange(len(texts)), ROWS, shuffled=False).groups():
                outputs = self.model(to_device(examples.batch(group), self.device))
                probabilities_PL[group] = self.model.probabilities(outputs).double().cpu().numpy()
        return probabilities_PL

    def _texts(self, texts: Sequence[str | tuple[str, str]]) -> LabelledTexts:
        paired = bool(self.config.model.options.get("pairs"))
        for number, text in enumerate(texts, start=1):
            if isinstance(text, str) == paired:
                got, expected = ("one text", "two") if paired else ("two texts", "one")
                raise DataError(
                    f"got {got} to classify (number {number} of those read together), but {self.folder.path} was "
                    f"trained on {'pairs' if paired else 'single texts'}; give {expected}."
                )
        firsts = [text if isinstance(text, str) else text[0] for text in texts]
        seconds = [text[1] for text in texts if not isinstance(text, str)]
        rows = [_rows(self.tokenizer, column) for column in ([firsts, seconds] if paired else [firsts])]
        return LabelledTexts(rows[0], rows[1] if paired else None, unlabelled(len(texts)), self._most)

    def evaluate(  # type: ignore[override]
        self, texts: Paths, *, field: str | None = None, progress: Progress | None = None
    ) -> ClassEvaluation:
        """Accuracy, F1 and confusions on labelled texts, with protocol and signature."""
        opened = self._opened(texts, field)
        return self._measure(opened, np.arange(len(opened.examples)), progress)

    def _measure(self, opened: Opened, numbers_P: Any, progress: Progress | None) -> ClassEvaluation:
        told = tell(self.model, opened.examples, numbers_P, progress)
        return class_evaluation(told, opened.examples, numbers_P, label_signature(opened, self.tokenizer))


class TaggerRun(LabelRun):
    """A trained tagger with its tokeniser and its folder."""

    counted = "sentences"

    def tag(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        """The tag of each word of each sentence, in order; a sentence without words has none."""
        for window in _windows(sentences):
            yield from self._tag(window)

    def _tag(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        ends_P = np.cumsum([len(words) for words in sentences])
        if not ends_P[-1]:
            yield from ([] for _ in sentences)
            return
        words = self._words(sentences)
        note_cut(words, self._most, _warn)
        chosen = tell(self.model, words).chosen
        for begin, end in zip([0, *ends_P[:-1].tolist()], ends_P.tolist(), strict=True):
            yield [self.labels[tag] for tag in chosen[begin:end]]

    def _words(self, sentences: Sequence[Sequence[str]]) -> TaggedWords:
        spaced, tokenizer = takes_spaces(self.tokenizer), self.tokenizer
        lines = [
            word_line(word, spaced=spaced and number > 0) for words in sentences for number, word in enumerate(words)
        ]
        ends_P = np.cumsum([len(words) for words in sentences if len(words)])
        labels = Labels(self.labels, np.zeros(len(lines), np.int32), ends_P)
        filler = tokenizer.eos if tokenizer.unk is None else tokenizer.unk
        return TaggedWords(_rows(tokenizer, [line[:-1] for line in lines]), labels, filler, self._most)

    def evaluate(  # type: ignore[override]
        self, texts: Paths, *, field: str | None = None, progress: Progress | None = None
    ) -> TagEvaluation:
        """Accuracy and F1 of spans on tagged sentences, with protocol and signature."""
        opened = self._opened(texts, field)
        return self._measure(opened, np.arange(len(opened.examples)), progress)

    def _measure(self, opened: Opened, numbers_P: Any, progress: Progress | None) -> TagEvaluation:
        assert isinstance(opened.examples, TaggedWords)
        told = tell(self.model, opened.examples, numbers_P, progress)
        return tag_evaluation(told, opened.examples, label_signature(opened, self.tokenizer))


def _rows(tokenizer: Tokenizer, lines: Sequence[str]) -> Rows:
    """Lines in memory as rows of tokens."""
    text = "".join(line.replace("\n", " ") + "\n" for line in lines)
    blocks = [tokenizer.encode_block(block) for block in tokenizer.blocks(text_of(text))]
    return Rows(np.concatenate(blocks), tokenizer.eos)


def _windows(items: Iterable[Any]) -> Iterator[list[Any]]:
    """What is read at once: 8, then twice as many each time, up to WINDOW."""
    rest, size = iter(items), 8
    while window := list(islice(rest, size)):
        yield window
        size = min(WINDOW, 2 * size)


def _with_field(config: RunConfig, field: str | None) -> RunConfig:
    if field is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"field": field})})


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
