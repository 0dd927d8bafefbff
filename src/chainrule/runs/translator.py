"""Runs of translators.

run = cr.load("runs/en-de")
run.translate("A dog runs.")                            # one line
for best, *others in run.translate_lines(lines): ...    # many, n-best, in order
run.evaluate(["test.en", "test.de"]).bleu
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.devices import threads
from chainrule.base.grammar import plural
from chainrule.base.progress import Progress
from chainrule.data.held_out import held_out_pairs
from chainrule.data.in_memory import Data
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
from chainrule.inference.score import LineScore, unit_of
from chainrule.inference.search import Search
from chainrule.inference.subject import warn_cut
from chainrule.models.translator import ConditionedModel
from chainrule.registry import RUNS
from chainrule.runs.base import ValidationMeasures
from chainrule.runs.translation import TranslatingRun
from chainrule.tasks.spans import SpanCorpus, SpanCorruption
from chainrule.tasks.task import Listener, task_of
from chainrule.tasks.translation import LEAST_PAIRS, PairCorpus, open_pair_store, read_pairs
from chainrule.text.formats.pairs import Pairs, part_of
from chainrule.text.readers import lines_in, open_texts


@dataclass(frozen=True)
class SpanEvaluation(Measurement):
    """A model that was trained to restore removed spans, measured on its validation text."""

    cross_entropy: float  # nats per token of the spans
    perplexity: float
    protocol: str = "spans of the validation text are removed and restored; tune the model on pairs with --init."


@RUNS.register("translation")
class TranslatorRun(TranslatingRun):
    """A trained translator with its tokenisers and its folder."""

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

        Args:
            texts: Two paths, a path of pairs, or pairs in memory.
            references: Files with further references.
            lowercase: Whether upper and lower case count as equal.
            bleu_tokenizer: How BLEU splits words, a name of sacreBLEU. None: chosen from the target.
            outputs: Translations made before, one per pair. None: they are made.
            progress: Called with the lines translated and their number.
            **search: Options of the search, as in `translate`.
        """
        pairs = self.pairs(texts)
        store = self._checked_store(pairs)
        further = [list(lines_in(open_texts([path]))) for path in references]
        return self._evaluate(pairs, store, further, lowercase, bleu_tokenizer, outputs, progress, search)

    def evaluate_options(self) -> set[str]:
        return super().evaluate_options() | {field.name for field in fields(Search)}

    def evaluate_held_out(
        self, max_pairs: int | None = None, outputs: Sequence[str] | None = None, **search: Any
    ) -> PairEvaluation:
        """The same on the validation pairs of the training: those given, or those held out; the first `max_pairs`.

        Args:
            max_pairs: Number of pairs, the first ones. None: all.
            outputs: Translations made before, one per pair. None: they are made.
            **search: Options of the search, as in `translate`.
        """
        pairs = self.held_out_pairs()
        pairs = part_of(pairs, 0, max_pairs) if max_pairs else pairs
        return self._evaluate(pairs, self._store(pairs), [], False, None, outputs, None, search)

    def validation_measures(self, texts: Data | None = None, limit: int | None = None) -> ValidationMeasures:
        """Loss (nats per reference token) and BLEU of the run as it is set now, on the first `limit` pairs.

        Args:
            texts: The pairs, as in `evaluate`. None: those held out.
            limit: Number of pairs, the first ones. None: all.
        """
        pairs = self.pairs(texts) if texts else self.held_out_pairs()
        pairs = part_of(pairs, 0, limit) if limit else pairs
        store, references = self._store(pairs), [list(lines_in(pairs.target))]
        metric = make_metric("bleu", references)

        def loss() -> float:
            return score_targets(self.model, store, None).every.cross_entropy

        def bleu() -> float:
            return float(metric.official.corpus_score(self.outputs(lines_in(pairs.source)), references).score)

        return ValidationMeasures(
            {"loss": loss, "bleu": bleu}, plural(len(store), "pair"), pair_signature(store, self.tokenizer)
        )

    def held_out_pairs(self) -> Pairs:
        """The validation pairs of the training: those given, or those held out."""
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
        """Whether the second outputs differ significantly from the first, which are this run's.

        Args:
            texts: The pairs, as in `evaluate`.
            outputs: The translations of this run and of another system.
            references: Files with further references.
            lowercase: Whether upper and lower case count as equal.
            bleu_tokenizer: How BLEU splits words, as in `evaluate`.
            metric: What is compared: "bleu" or "chrf".
        """
        given = [list(lines_in(self.pairs(texts).target)), *(list(lines_in(open_texts([p]))) for p in references)]
        return paired_test(*outputs, given, metric=metric, lowercase=lowercase, tokenizer=bleu_tokenizer)

    def score_pairs(self, texts: Data, *, base: float = math.e) -> Iterator[LineScore]:
        """log p of each target given its source, its `<eos>` included, in order: forced decoding.

        Args:
            texts: Two paths, a path of pairs, or pairs in memory.
            base: Base of the logarithms, for example 10 or 2.
        """
        pairs, unit = self.pairs(texts), unit_of(base)
        store = self._checked_store(pairs)
        self._check_lengths(pairs, store)
        for tokens, nats in score_rows(self.model, store):
            log_probs = [unit * value for value in nats]
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
        """Target tokens per second when one line is translated greedily.

        Args:
            tokens: Number of tokens that are generated.
        """
        limit = tokens if self.model.window is None else min(tokens, self.model.window - 1)
        eos = self.source_tokenizer.eos
        source = pad_sources([[eos] * min(20, limit)], eos, self.device)
        with threads(1):
            return generation_speed(
                ConditionedModel(self.model, source), eos=self.tokenizer.eos, tokens=limit, warm_up=min(8, limit)
            )

    def outputs_of(self, texts: Data, *, progress: Progress | None = None, **search: Any) -> list[str]:
        """The best translation of each source of some pairs.

        Args:
            texts: Two paths, a path of pairs, or pairs in memory.
            progress: Called with the lines translated and their number.
            **search: Options of the search, as in `translate`.
        """
        pairs = self.pairs(texts)
        return self.outputs(lines_in(pairs.source), len(self._store(pairs)), progress, **search)

    def pairs(self, texts: Data) -> Pairs:
        """Two parallel files, or files of pairs, as this run reads them.

        Args:
            texts: Two paths, a path of pairs, or pairs in memory.
        """
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
