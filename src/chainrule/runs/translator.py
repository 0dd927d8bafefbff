"""A trained translator: what `load` gives for a run whose model reads a source.

run = cr.load("runs/en-de")
run.translate("A dog runs.")                            # one line
for best, *others in run.translate_lines(lines): ...    # many, n-best, in order
run.evaluate(["test.en", "test.de"]).bleu
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from chainrule.base.devices import threads
from chainrule.base.progress import Progress
from chainrule.data.pairs import PairStore
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.pairs import PairEvaluation, evaluate_pairs, scored_rows, source_of
from chainrule.evaluation.significance import Paired, paired
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import perplexity_of
from chainrule.inference.search import Search
from chainrule.inference.translate import Translation, translate_lines, warn_cut
from chainrule.models.translator import Given
from chainrule.runs.language_model import LineScore, Paths, Run, path_strings
from chainrule.tasks.language_model import Listener, open_text_corpus, reads_spans
from chainrule.tasks.translation import held_out, open_pair_store
from chainrule.text.formats.pairs import Pairs, open_pairs, part_of, prefixed
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.vocabulary import VocabularyTokenizer


@dataclass(frozen=True)
class SpanEvaluation:
    """A model that was trained to restore hidden spans, measured on hidden spans of its validation text."""

    cross_entropy: float  # nats a token of the spans
    perplexity: float
    protocol: str = "spans of the validation text are hidden and restored; the model is to be tuned on pairs (--init)."

    @classmethod
    def of(cls, cross_entropy: float) -> SpanEvaluation:
        return cls(cross_entropy, perplexity_of(cross_entropy))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class TranslatorRun(Run):
    """A trained translator with its tokenisers and its folder."""

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        return self.folder.read_source_tokenizer() or self.tokenizer

    # Translating

    def translate(self, line: str, **search: Any) -> str:
        """The best translation of one line; `search` are the fields of `translating.Search`."""
        return next(self.translate_lines([line], **search))[0].text

    def translate_lines(
        self, lines: Iterable[str], *, together: Sequence[TranslatorRun] = (), **search: Any
    ) -> Iterator[list[Translation]]:
        """The translations of each line, the best first, in order, while lines are still being read.

        `together` are further runs whose probabilities are averaged with this one's.
        """
        return translate_lines([self, *together], lines, Search(**search))

    def encode_source(self, line: str, number: int = 1) -> list[int]:
        """A line as source tokens, cut with a warning where the model cannot read more."""
        tokens = self.source_tokenizer.encode(self.config.data.prefix + line)
        most = len(tokens) if self.model.window is None else self.model.window - 1
        if len(tokens) > most:
            warn_cut(number, len(tokens), most)
        return tokens[:most]

    def source_pieces(self, line: str, tokens: Sequence[int]) -> list[str]:
        """What the source tokens stand for: the very words of the line where the tokens are words."""
        tokenizer = self.source_tokenizer
        if isinstance(tokenizer, VocabularyTokenizer):
            words = tokenizer.split(self.config.data.prefix + line)[: len(tokens)]
            return [tokenizer.join([word]) for word in words]  # as they are written, without marks
        return [tokenizer.piece(token) for token in tokens]

    # Measuring

    def evaluate(  # type: ignore[override]
        self,
        texts: Paths,
        *,
        references: Sequence[str | Path] = (),
        lowercase: bool = False,
        bleu_tokenizer: str | None = None,
        outputs: Sequence[str] | None = None,
        progress: Progress | None = None,
        **search: Any,
    ) -> PairEvaluation:
        """BLEU, chrF, ROUGE and the rest of the translations of two parallel files, or of a file of pairs.

        `references` are files of further references, `outputs` translations made before, `search` the fields of
        `translating.Search`.
        """
        pairs = self.pairs(texts)
        further = [list(lines_in(open_texts([path]))) for path in references]
        return self._evaluate(pairs, further, lowercase, bleu_tokenizer, outputs, progress, search)

    def evaluate_held_out(self, most: int | None = None, **search: Any) -> PairEvaluation:  # type: ignore[override]
        """The same on the validation pairs of the training: those given, or those held out; the first `most`."""
        pairs = self._held_out()
        return self._evaluate(part_of(pairs, 0, most) if most else pairs, [], False, None, None, None, search)

    def _held_out(self) -> Pairs:
        data = self.config.data
        pairs, lines = (
            (self.pairs(data.valid), data.valid_lines) if data.valid else (self.pairs(data.train), data.lines)
        )
        pairs = part_of(pairs, 0, lines) if lines else pairs
        return pairs if data.valid else held_out(pairs, data.held_out)

    def validation(self) -> PairEvaluation | SpanEvaluation:  # type: ignore[override]
        """What a training tells of its validation pairs: greedy search on the first of them, so as not to take long."""
        if not reads_spans(self.config):
            return self.evaluate_held_out(self.config.training.valid_pairs, num_beams=1)
        corpus = open_text_corpus(self.config, self.folder, Listener())
        return SpanEvaluation.of(corpus.validator(self.config)(self.model)["loss"])

    def _evaluate(
        self,
        pairs: Pairs,
        further: list[list[str]],
        lowercase: bool,
        bleu_tokenizer: str | None,
        outputs: Sequence[str] | None,
        progress: Progress | None,
        search: dict[str, Any],
    ) -> PairEvaluation:
        store = self._store(pairs)
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
            found_by=Search(**search).told,
        )

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

    def outputs_of(self, texts: Paths, *, progress: Progress | None = None, **search: Any) -> list[str]:
        """The best translation of each source of some pairs."""
        pairs = self.pairs(texts)
        return self.outputs(lines_in(pairs.source), len(self._store(pairs)), progress, **search)

    def compare_with(
        self,
        texts: Paths,
        outputs: tuple[Sequence[str], Sequence[str]],
        *,
        references: Sequence[str | Path] = (),
        lowercase: bool = False,
        bleu_tokenizer: str | None = None,
        metric: str = "bleu",
    ) -> Paired:
        """Whether the second outputs differ from the first, this run's, by more than chance."""
        given = [list(lines_in(self.pairs(texts).target)), *(list(lines_in(open_texts([p]))) for p in references)]
        return paired(*outputs, given, metric=metric, lowercase=lowercase, tokenizer=bleu_tokenizer)

    def score_pairs(self, texts: Paths) -> Iterator[LineScore]:
        """log p of each target given its source, its `<eos>` included, in order: forced decoding."""
        pairs = self.pairs(texts)
        store = self._store(pairs)
        self._check_lengths(pairs, store)
        for tokens, log_probs in scored_rows(self.model, store):
            pieces = [self.tokenizer.piece(token) for token in tokens]
            yield LineScore(sum(log_probs), len(log_probs), pieces, log_probs)

    def _check_lengths(self, pairs: Pairs, store: PairStore) -> None:
        """Whole targets are scored or none; a source is cut with a warning."""
        if (window := self.model.window) is None:
            return
        for number in np.flatnonzero(store.target_rows.lengths_P >= window)[:1].tolist():
            raise DataError(
                f"line {number + 1} of {pairs.target.name} has {store.target_rows.lengths_P[number]} tokens, but the "
                f"model writes at most {window - 1}; leave the pair out, or train with a larger model.context"
            )
        for number in np.flatnonzero(store.source_rows.lengths_P >= window).tolist():
            warn_cut(number + 1, int(store.source_rows.lengths_P[number]), window - 1)

    def generation_speed(self, tokens: int = 200) -> float:
        """Target tokens a second when one line is translated greedily."""
        limit = tokens if self.model.window is None else min(tokens, self.model.window - 1)
        eos = self.source_tokenizer.eos
        source = source_of([[eos] * min(20, limit)], eos, self.device)
        with threads(1):
            return generation_speed(
                Given(self.model, source), eos=self.tokenizer.eos, tokens=limit, warm_up=min(8, limit)
            )

    def pairs(self, texts: Paths) -> Pairs:
        """Two parallel files, or files of pairs, as this run reads them."""
        return open_pairs(path_strings(texts), fields=(self.config.data.source_field, self.config.data.target_field))

    def _store(self, pairs: Pairs) -> PairStore:
        prefix = self.config.data.prefix
        return open_pair_store(prefixed(pairs, prefix) if prefix else pairs, self.source_tokenizer, self.tokenizer)

    # What a translator does not do

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        raise ConfigError(
            f"{self.folder.path} is a {self.config.model.name}, which translates and does not continue a text; use "
            "chainrule translate, or a language model"
        )

    generate = stream = compress = decompress = score = score_text = open = open_held_out = _refuse
