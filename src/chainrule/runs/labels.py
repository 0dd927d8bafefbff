"""Runs of classifiers and taggers.

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
from typing import Any, cast, overload

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.checkpoint.build import model_options
from chainrule.config import RunConfig
from chainrule.data.batches import to_device
from chainrule.data.grouping import in_windows
from chainrule.data.in_memory import Data, Texts, answer, labelled_in, sentences_in
from chainrule.data.labels import LabelBatches, LabelledTexts, unlabelled
from chainrule.data.rows import Indices, Rows
from chainrule.data.tags import TaggedWords
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.labels import (
    ROWS,
    ClassEvaluation,
    LabelledItems,
    Predictions,
    evaluate_labels,
    label_probabilities,
    predict,
)
from chainrule.evaluation.tags import TagEvaluation, evaluate_tags
from chainrule.evaluation.validation_budget import final_tokens, scored_part
from chainrule.inference.text_attention import TextAttention, text_attention
from chainrule.registry import RUNS
from chainrule.runs.base import EvaluatedRun
from chainrule.tasks.labels import LabelCorpus, LabelledData, LabelTask, spread_tokens, tagged_words, trained_on
from chainrule.text.formats.labels import Labels
from chainrule.text.formats.tags import word_line
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer

FIRST_WINDOW, LAST_WINDOW = 8, 16 * ROWS
"""Texts read before they are sorted by length and labelled: at first, and later."""


@dataclass(frozen=True)
class Labelled:
    """A label with its probability."""

    label: str
    probability: float


class LabelRun(EvaluatedRun):
    """Shared by classifiers and taggers: labels, and files of labelled text."""

    shows_output = False

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that it can predict."""
        return tuple(model_options(self.config).labels)

    @property
    def label_task(self) -> LabelTask:
        """Its task, which reads labelled files."""
        return cast(LabelTask, self.task)

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens that are read of one text; None: all."""
        limit: int | None = model_options(self.config).context
        return limit

    def evaluate(self, texts: Data, *, field: str | None = None, progress: Progress | None = None) -> Any:
        """Accuracy, F1 and more on labelled data, with protocol and signature.

        Args:
            texts: A path, several paths, or rows (label, text), columns (texts, labels) or a frame in memory.
            field: Name of the column or JSON field with the texts. None: that of the training.
            progress: Called with the texts read and the total.
        """
        data = self._read(texts, field)
        return self._measure(data, np.arange(len(data.examples)), progress)

    def evaluate_held_out(self) -> Any:
        return self._measure(*self._held_out(), None)

    def validation(self) -> Any:
        data, indices_P = self._held_out()
        if not self.config.data.valid:
            held_out = len(indices_P)
            indices_P = spread_tokens(data.examples, indices_P, final_tokens(self.result["tokens"]))
            self.validation_note = scored_part(len(indices_P), held_out, self.unit)
        return self._measure(data, indices_P, None)

    def info(self) -> dict[str, Any]:
        return {**super().info(), "labels": list(self.labels)}

    def label(self, texts: Data | None = None, *, field: str | None = None) -> LabelledItems:
        """The labels predicted for labelled data beside the true ones, and the evaluation.

        Args:
            texts: The data, as in `evaluate`. None: the validation data of the training.
            field: Name of the column or JSON field with the texts. None: that of the training.
        """
        if texts is None:
            data, indices_P = self._held_out()
        else:
            data = self._read(texts, field)
            indices_P = np.arange(len(data.examples))
        predictions = predict(self.model, data.examples, indices_P)
        return LabelledItems(data.examples, indices_P, predictions, self._evaluate(data, indices_P, predictions))

    def _measure(self, data: LabelledData, indices_P: Indices, progress: Progress | None) -> Any:
        return self._evaluate(data, indices_P, predict(self.model, data.examples, indices_P, progress))

    def _evaluate(self, data: LabelledData, indices_P: Indices, predictions: Predictions) -> Any:
        raise TypeError(f"{type(self).__name__} must define _evaluate")

    def _read(self, texts: Data, field: str | None, max_examples: int | None = None) -> LabelledData:
        """Labelled files as this run reads them."""
        config, several = _with_field(self.config, field), bool(self.config.model.options.get("multi_label"))
        known = Labels(self.labels, np.zeros(0, np.int32), np.zeros(0, np.int64), several)
        data = self.label_task.open_known(config, self.files(texts, field), max_examples, known, self.tokenizer)
        self._warn_cut(data.examples)
        return data

    def _held_out(self) -> tuple[LabelledData, Indices]:
        """The validation data of the training, and which of it."""
        if isinstance(self.corpus, LabelCorpus):
            return self.corpus.valid, self.corpus.valid_P
        data = self.config.data
        if data.valid:
            opened = self._read(data.valid, None, data.valid_lines)
            return opened, np.arange(len(opened.examples))
        opened = self._read(data.train, None, data.lines)
        kept_P = trained_on(len(opened.examples.labels), data.held_out, data.train[0])
        return opened, np.flatnonzero(~kept_P[opened.examples.texts()])

    def _warn_cut(self, examples: Any) -> None:
        self.label_task.note_cut(examples, self.max_tokens, lambda text: warnings.warn(text, stacklevel=5))


@RUNS.register("labels")
class ClassifierRun(LabelRun):
    """A trained classifier with its tokeniser and its folder."""

    verbs = ("classify", *LabelRun.verbs)
    unit = "texts"

    @overload
    def classify(  # type: ignore[overload-overlap]  # a string is one text
        self, texts: str, top: int = 1
    ) -> list[Labelled]: ...

    @overload
    def classify(self, texts: Iterator[str | tuple[str, str]], top: int = 1) -> Iterator[list[Labelled]]: ...

    @overload
    def classify(self, texts: Texts, top: int = 1) -> Results[list[Labelled]]: ...

    def classify(
        self, texts: Texts, top: int = 1
    ) -> list[Labelled] | Results[list[Labelled]] | Iterator[list[Labelled]]:
        """The labels of each text, the most probable first.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. An entry of a classifier of pairs is a tuple
                of two texts. Texts are read in windows, the first of few, so that answers come while an iterator is
                still being read.
            top: Number of labels for each text.

        Returns:
            The labels of one text with their probabilities; a list of these for a list, an iterator for an iterator.
        """
        if top < 1:
            raise ConfigError(f"top is {top}; expected at least 1 label")
        return answer(texts, self._classify(labelled_in(texts, self._fields), top))

    def probabilities(self, texts: Texts) -> Array:
        """p of each label of each text.

        Args:
            texts: One text, or a list, iterator, column or frame of texts.

        Returns:
            An array in float64 whose columns are those of `labels`: C for one text, else PC.
        """
        windows = in_windows(labelled_in(texts, self._fields), LAST_WINDOW)
        found = [self._probabilities(window) for window in windows]
        rows_PC = np.concatenate(found) if found else np.zeros((0, len(self.labels)))
        return rows_PC[0] if isinstance(texts, str) else rows_PC

    @overload
    def attention(self, texts: str) -> TextAttention: ...  # type: ignore[overload-overlap]  # a string is one text

    @overload
    def attention(self, texts: Iterator[str | tuple[str, str]]) -> Iterator[TextAttention]: ...

    @overload
    def attention(self, texts: Texts) -> Results[TextAttention]: ...

    def attention(self, texts: Texts) -> TextAttention | Results[TextAttention] | Iterator[TextAttention]:
        """How much each token counts in the vector of its text: the weights of the attention pooling.

        Args:
            texts: Texts, as in `classify`.

        Returns:
            Tokens and weights of one text; a list of these for a list, an iterator for an iterator.
        """
        return answer(texts, (self._attention(text) for text in labelled_in(texts, self._fields)))

    def _attention(self, text: str | tuple[str, str]) -> TextAttention:
        examples = self._examples([text])
        self._warn_cut(examples)
        return text_attention(self.subject, examples.batch(np.zeros(1, np.int64)), text)

    @property
    def _fields(self) -> tuple[str, str]:
        """The columns of the text and of the second text of a pair."""
        return self.config.data.field, self.config.data.pair_field

    def _classify(self, texts: Iterable[str | tuple[str, str]], top: int) -> Iterator[list[Labelled]]:
        for window in in_windows(texts, FIRST_WINDOW, LAST_WINDOW):
            for row_C in self._probabilities(window):
                best = np.argsort(-row_C, kind="stable")[:top]
                yield [Labelled(self.labels[index], float(row_C[index])) for index in best]

    def _probabilities(self, texts: Sequence[str | tuple[str, str]]) -> Array:
        """p of each label, PC."""
        examples = self._examples(texts)
        self._warn_cut(examples)
        return label_probabilities(self.model, examples, np.arange(len(texts)), len(self.labels))

    def _examples(self, texts: Sequence[str | tuple[str, str]]) -> LabelledTexts:
        paired = bool(self.config.model.options.get("pairs"))
        for number, text in enumerate(texts, start=1):
            if isinstance(text, str) == paired:
                got, expected = ("one text", "two") if paired else ("two texts", "one")
                raise DataError(
                    f"got {got} to classify (number {number} of those read together), but {self.shown_name} was "
                    f"trained on {'pairs' if paired else 'single texts'}; give {expected}"
                )
        firsts = [text if isinstance(text, str) else text[0] for text in texts]
        seconds = [text[1] for text in texts if not isinstance(text, str)]
        rows = [_rows(self.tokenizer, column) for column in ([firsts, seconds] if paired else [firsts])]
        return LabelledTexts(rows[0], rows[1] if paired else None, unlabelled(len(texts)), self.max_tokens)

    def _evaluate(self, data: LabelledData, indices_P: Indices, predictions: Predictions) -> ClassEvaluation:
        return evaluate_labels(predictions, data.examples, indices_P, data.signature(self.tokenizer))


@RUNS.register("tags")
class TaggerRun(LabelRun):
    """A trained tagger with its tokeniser and its folder."""

    verbs = ("tag", *LabelRun.verbs)
    unit = "sentences"

    @overload
    def tag(self, sentences: str) -> list[str]: ...  # type: ignore[overload-overlap]  # a string is one text

    @overload
    def tag(self, sentences: Iterator[str | Sequence[str]]) -> Iterator[list[str]]: ...

    @overload
    def tag(self, sentences: Texts) -> Results[list[str]]: ...

    def tag(self, sentences: Texts) -> list[str] | Results[list[str]] | Iterator[list[str]]:
        """The tag of each word of each sentence; a sentence without words has none.

        Args:
            sentences: One sentence, or a list, iterator, column or frame of sentences. A sentence is a list of words,
                or a string, whose words are separated by white space.

        Returns:
            The tags of one sentence; a list of these for a list, an iterator for an iterator.
        """
        return answer(sentences, self._tags(sentences_in(sentences, self.config.data.field)))

    def probabilities(self, sentences: Texts) -> Array | Results[Array]:
        """p of each tag of each word, given the whole sentence; of a CRF the marginal probabilities.

        Args:
            sentences: Sentences, as in `tag`.

        Returns:
            An array in float64 with a row per word, whose columns are those of `labels`; a list of these for several.
        """
        given = list(sentences_in(sentences, self.config.data.field))
        found = self._probabilities(given)
        return found[0] if isinstance(sentences, str) else Results(found)

    def _probabilities(self, sentences: Sequence[Sequence[str]]) -> list[Array]:
        ends_P = np.cumsum([len(words) for words in sentences])
        probabilities_NC = np.zeros((ends_P[-1] if len(ends_P) else 0, len(self.labels)))
        if len(probabilities_NC):
            words = self._words(sentences)
            self._warn_cut(words)
            with evaluating(self.model):
                for group in LabelBatches(words, np.arange(len(words)), ROWS, shuffled=False).groups():
                    batch = to_device(words.batch(group), self.device)
                    found_BTC = self.model.probabilities(self.model(batch), batch)
                    words.scatter(probabilities_NC, group, found_BTC.double().cpu().numpy())
        return np.split(probabilities_NC, ends_P[:-1]) if len(ends_P) else []

    def _tags(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        for window in in_windows(sentences, FIRST_WINDOW, LAST_WINDOW):
            yield from self._tag(window)

    def _tag(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        ends_P = np.cumsum([len(words) for words in sentences])
        if not ends_P[-1]:
            yield from ([] for _ in sentences)
            return
        words = self._words(sentences)
        self._warn_cut(words)
        predicted_N = predict(self.model, words).predicted
        for begin, end in zip([0, *ends_P[:-1].tolist()], ends_P.tolist(), strict=True):
            yield [self.labels[tag] for tag in predicted_N[begin:end]]

    def _words(self, sentences: Sequence[Sequence[str]]) -> TaggedWords:
        spaced, tokenizer = self.tokenizer.spaces_matter, self.tokenizer
        lines = [
            word_line(word, spaced=spaced and index > 0) for words in sentences for index, word in enumerate(words)
        ]
        ends_P = np.cumsum([len(words) for words in sentences if len(words)])
        labels = Labels(self.labels, np.zeros(len(lines), np.int32), ends_P)
        return tagged_words(_rows(tokenizer, [line[:-1] for line in lines]), labels, tokenizer, self.max_tokens)

    def _evaluate(self, data: LabelledData, indices_P: Indices, predictions: Predictions) -> TagEvaluation:
        return evaluate_tags(predictions, data.examples, data.signature(self.tokenizer))


def _rows(tokenizer: Tokenizer, lines: Sequence[str]) -> Rows:
    """Lines in memory as rows of tokens."""
    text = "".join(line.replace("\n", " ") + "\n" for line in lines)
    blocks = [tokenizer.encode_block(block) for block in tokenizer.blocks(text_of(text))]
    return Rows(np.concatenate(blocks), tokenizer.eos)


def _with_field(config: RunConfig, field: str | None) -> RunConfig:
    if field is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"field": field})})
