"""Runs of translators.

run = cr.load("runs/en-de")
run.translate("A dog runs.")                            # one line
for best, *others in run.translate_lines(lines): ...    # many, n-best, in order
run.evaluate(["test.en", "test.de"]).bleu
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from chainrule.base.devices import threads
from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.data.held_out import held_out_pairs
from chainrule.data.in_memory import Data, Texts, answer, texts_in
from chainrule.data.pair_checks import check_pairs
from chainrule.data.pairs import PairStore, pad_sources
from chainrule.errors import DataError
from chainrule.evaluation.measurement import Measurement
from chainrule.evaluation.metrics import make_metric
from chainrule.evaluation.pairs import PairEvaluation, evaluate_pairs, pair_signature, score_rows, score_targets
from chainrule.evaluation.perplexity import perplexity
from chainrule.evaluation.significance import PairedResult, paired_test
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.validation_budget import final_tokens, scored_part
from chainrule.inference.fill import Filled, check_top, fill_gaps
from chainrule.inference.score import LineScore
from chainrule.inference.search import Search
from chainrule.inference.subject import TranslationModel, warn_cut
from chainrule.inference.translate import Translation, translate_lines
from chainrule.models.options import LiveOption
from chainrule.models.translator import ConditionedModel
from chainrule.registry import RUNS
from chainrule.runs.base import EvaluatedRun, Run, ValidationMeasures
from chainrule.tasks.spans import SpanCorpus, SpanCorruption
from chainrule.tasks.task import Corpus, Listener, task_of
from chainrule.tasks.translation import LEAST_PAIRS, PairCorpus, open_pair_store, read_pairs
from chainrule.text.formats.pairs import Pairs, part_of
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class SpanEvaluation(Measurement):
    """A model that was trained to restore removed spans, measured on its validation text."""

    cross_entropy: float  # nats per token of the spans
    perplexity: float
    protocol: str = "spans of the validation text are removed and restored; tune the model on pairs with --init."


@RUNS.register("translation")
class TranslatorRun(EvaluatedRun):
    """A trained translator with its tokenisers and its folder."""

    verbs = ("translate", "score", "tune", "distill", *EvaluatedRun.verbs)
    unit = "lines"
    decoding_options = (
        LiveOption("num_beams", choices=(1, 2, 5, 10)),
        LiveOption("length_penalty", choices=(0.0, 0.4, 0.8, 1.0, 1.2, 1.6, 2.0)),
    )
    decoding_defaults = Search()

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        """The tokeniser of the source; the same as `tokenizer` where they share one."""
        return self.folder.read_source_tokenizer() or self.tokenizer

    @property
    def subject(self) -> TranslationModel:
        return TranslationModel(self.model, self.tokenizer, self.name, self.source_tokenizer, self.config.data.prefix)

    def keep(self, model: Any, corpus: Corpus | None) -> None:
        super().keep(model, corpus)
        if corpus is not None:
            self.source_tokenizer = corpus.source_tokenizer or corpus.tokenizer

    # Translating

    @overload
    def translate(self, texts: str, **search: Any) -> str: ...

    @overload
    def translate(self, texts: Iterator[str], **search: Any) -> Iterator[str]: ...

    @overload
    def translate(self, texts: Texts, **search: Any) -> Results[str]: ...

    def translate(self, texts: Texts, **search: Any) -> str | Results[str] | Iterator[str]:
        """The best translation of each text.

        Args:
            texts: One text, or a list, iterator, column or frame of texts.
            **search: Options of the search, the fields of `chainrule.inference.search.Search`: num_beams,
                length_penalty, batch_size and others.

        Returns:
            The translation of one text; a list of translations for a list, an iterator for an iterator.
        """
        return answer(texts, (best[0].text for best in self._translations(texts, (), search)))

    def translate_lines(
        self, lines: Texts, *, together: Sequence[TranslatorRun] = (), **search: Any
    ) -> Iterator[list[Translation]]:
        """All translations of each text with their scores, best first, in order, while texts are still being read.

        Args:
            lines: One text, or a list, iterator, column or frame of texts.
            together: Further runs of an ensemble that averages their probabilities.
            **search: Options of the search, the fields of `chainrule.inference.search.Search`; num_return_sequences is
                the number of translations of each text.
        """
        return self._translations(lines, together, search)

    def _translations(
        self, texts: Texts, together: Sequence[TranslatorRun], search: dict[str, Any]
    ) -> Iterator[list[Translation]]:
        if isinstance(search.get("draft"), Run):
            search["draft"] = search["draft"].subject
        lines = texts_in(texts, self.config.data.source_field)
        return translate_lines([run.subject for run in (self, *together)], lines, self.search_options(search))

    def search_options(self, given: Mapping[str, Any]) -> Search:
        """The options of a search: those given, else the run's own defaults for a beam (`decoding` of config.toml)."""
        beam = given.get("mode", "ar") == "ar" and given.get("draft") is None
        return Search(**{**(self.config.decoding.model_dump(exclude_none=True) if beam else {}), **given})

    def outputs(
        self, lines: Iterable[str], count: int = 0, progress: Progress | None = None, **search: Any
    ) -> list[str]:
        """The best translation of each of `count` lines."""
        outputs = []
        for number, best in enumerate(self.translate_lines(lines, **search), start=1):
            outputs.append(best[0].text)
            if progress:
                progress(number, count)
        return outputs

    def outputs_of(self, texts: Data, *, progress: Progress | None = None, **search: Any) -> list[str]:
        """The best translation of each source of some pairs."""
        pairs = self.pairs(texts)
        return self.outputs(lines_in(pairs.source), len(self._store(pairs)), progress, **search)

    @overload
    def fill(  # type: ignore[overload-overlap]  # a string is one text
        self, text: str, top: int = 5
    ) -> list[Filled]: ...

    @overload
    def fill(self, text: Iterator[str], top: int = 5) -> Iterator[list[Filled]]: ...

    @overload
    def fill(self, text: Texts, top: int = 5) -> Results[list[Filled]]: ...

    def fill(self, text: Texts, top: int = 5) -> list[Filled] | Results[list[Filled]] | Iterator[list[Filled]]:
        """The best fillings of every [MASK] of a text, in order, by a model with sentinels (t5).

        A [MASK] is a gap of any number of tokens; each is filled given the best filling of those before it.

        Args:
            text: One text, or a list, iterator, column or frame of texts.
            top: Number of fillings for each mask.

        Returns:
            The fillings of each mask of one text; a list of these for a list, an iterator for an iterator.
        """
        if "fill" not in self.available_verbs:
            raise self.missing("fill")
        check_top(top)
        subject = self.subject
        return answer(text, (fill_gaps(subject, one, top) for one in texts_in(text, self.config.data.field)))

    # Measuring

    def evaluate(
        self,
        texts: Data,
        *,
        references: Sequence[str | Path] = (),
        lowercase: bool = False,
        bleu_tokenizer: str | None = None,
        outputs: Sequence[str] | None = None,
        progress: Progress | None = None,
        **search: Any,
    ) -> PairEvaluation:
        """BLEU, chrF, ROUGE and more of the translations of two parallel files, or of a file of pairs.

        `references` are files of further references, `outputs` translations made before, `search` the fields of
        `inference.search.Search`.
        """
        pairs = self.pairs(texts)
        store = self._checked_store(pairs)
        further = [list(lines_in(open_texts([path]))) for path in references]
        return self._evaluate(pairs, store, further, lowercase, bleu_tokenizer, outputs, progress, search)

    def evaluate_options(self) -> set[str]:
        return super().evaluate_options() | {field.name for field in fields(Search)}

    def evaluate_held_out(self, max_pairs: int | None = None, **search: Any) -> PairEvaluation:
        """The same on the validation pairs of the training: those given, or those held out; the first `max_pairs`."""
        pairs = self._held_out()
        pairs = part_of(pairs, 0, max_pairs) if max_pairs else pairs
        return self._evaluate(pairs, self._store(pairs), [], False, None, None, None, search)

    def validation_measures(self, texts: Data | None = None, limit: int | None = None) -> ValidationMeasures:
        """Loss (nats per reference token) and BLEU of the run as it is set now, on the first `limit` pairs."""
        pairs = self.pairs(texts) if texts else self._held_out()
        pairs = part_of(pairs, 0, limit) if limit else pairs
        store, references = self._store(pairs), [list(lines_in(pairs.target))]
        metric = make_metric("bleu", references)

        def loss() -> float:
            return score_targets(self.model, store, None).every.cross_entropy

        def bleu() -> float:
            return float(metric.official.corpus_score(self.outputs(lines_in(pairs.source)), references).score)

        return ValidationMeasures(
            {"loss": loss, "bleu": bleu}, f"{len(store):,} pairs", pair_signature(store, self.tokenizer)
        )

    def _held_out(self) -> Pairs:
        if isinstance(self.corpus, PairCorpus):
            return self.corpus.valid_pairs
        data = self.config.data
        if data.valid:
            return read_pairs(self.config, data.valid, data.valid_lines)
        return held_out_pairs(read_pairs(self.config, data.train, data.lines), data.held_out)

    def validation(self) -> PairEvaluation | SpanEvaluation:
        """Greedy search on the first validation pairs, so that it does not take long."""
        task = task_of(self.config)
        if not isinstance(task, SpanCorruption):
            return self.evaluate_held_out(self._validation_pairs(), num_beams=1)
        corpus = self.corpus
        if not isinstance(corpus, SpanCorpus):
            corpus = task.open(self.config, self.folder, Listener())
        loss = corpus.validator(self.config)(self.model)["loss"]
        return SpanEvaluation(loss, perplexity(loss))

    def _validation_pairs(self) -> int:
        """The number of pairs that are translated after a training."""
        most, data = self.config.training.valid_pairs, self.result.get("validation")
        if data is None or not data["held_out"]:
            return most
        length = max(1, data["tokens"] // (2 * data["items"]))  # of a target
        count: int = min(most, max(LEAST_PAIRS, final_tokens(self.result["tokens"]) // length))
        limit = f"at most training.valid_pairs = {most}, and "
        self.validation_note = scored_part(min(count, data["items"]), data["items"], "pairs", limit)
        return count

    def _evaluate(
        self,
        pairs: Pairs,
        store: PairStore,
        further: list[list[str]],
        lowercase: bool,
        bleu_tokenizer: str | None,
        outputs: Sequence[str] | None,
        progress: Progress | None,
        search: dict[str, Any],
    ) -> PairEvaluation:
        if outputs is None:
            outputs = self.outputs(lines_in(pairs.source), len(store), progress, **search)
        return evaluate_pairs(
            self.model,
            store,
            self.tokenizer,
            outputs,
            [list(lines_in(pairs.target)), *further],
            lowercase=lowercase,
            bleu_tokenizer=bleu_tokenizer,
            decoded_by=self.search_options(search).description,
        )

    def compare_with(
        self,
        texts: Data,
        outputs: tuple[Sequence[str], Sequence[str]],
        *,
        references: Sequence[str | Path] = (),
        lowercase: bool = False,
        bleu_tokenizer: str | None = None,
        metric: str = "bleu",
    ) -> PairedResult:
        """Whether the second outputs differ significantly from the first, which are this run's."""
        given = [list(lines_in(self.pairs(texts).target)), *(list(lines_in(open_texts([p]))) for p in references)]
        return paired_test(*outputs, given, metric=metric, lowercase=lowercase, tokenizer=bleu_tokenizer)

    def score_pairs(self, texts: Data) -> Iterator[LineScore]:
        """log p of each target given its source, its `<eos>` included, in order: forced decoding."""
        pairs = self.pairs(texts)
        store = self._checked_store(pairs)
        self._check_lengths(pairs, store)
        for tokens, log_probs in score_rows(self.model, store):
            pieces = [self.tokenizer.piece(token) for token in tokens]
            yield LineScore(sum(log_probs), len(log_probs), pieces, log_probs)

    def _check_lengths(self, pairs: Pairs, store: PairStore) -> None:
        """Refuse targets that the model cannot read whole; a source is cut with a warning."""
        if (window := self.model.window) is None:
            return
        for index in np.flatnonzero(store.target_rows.lengths_P >= window)[:1].tolist():
            raise DataError(
                f"line {index + 1} of {pairs.target.name} has {store.target_rows.lengths_P[index]} tokens, but the "
                f"model writes at most {window - 1}; leave the pair out, or train with a larger model.context"
            )
        for index in np.flatnonzero(store.source_rows.lengths_P >= window).tolist():
            warn_cut(index + 1, int(store.source_rows.lengths_P[index]), window - 1)

    def generation_speed(self, tokens: int = 200) -> float:
        """Target tokens per second when one line is translated greedily."""
        limit = tokens if self.model.window is None else min(tokens, self.model.window - 1)
        eos = self.source_tokenizer.eos
        source = pad_sources([[eos] * min(20, limit)], eos, self.device)
        with threads(1):
            return generation_speed(
                ConditionedModel(self.model, source), eos=self.tokenizer.eos, tokens=limit, warm_up=min(8, limit)
            )

    def pairs(self, texts: Data) -> Pairs:
        """Two parallel files, or files of pairs, as this run reads them."""
        return read_pairs(self.config, self.files(texts))

    def _checked_store(self, pairs: Pairs) -> PairStore:
        """The tokens of pairs; warns if they look swapped or out of step, compared with the training files."""
        store, files = self._store(pairs), self.config.data.train
        if files and all(Path(file).is_file() for file in files):
            for warning in check_pairs(pairs, store, read_pairs(self.config, files)):
                warnings.warn(warning, stacklevel=3)
        return store

    def _store(self, pairs: Pairs) -> PairStore:
        return open_pair_store(self.config, pairs, self.source_tokenizer, self.tokenizer)
