"""Runs that translate: one text or many, n-best, ensembles, and the fillings of masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.data.in_memory import Texts, answer, texts_in
from chainrule.inference.fill import Filled, check_top, fill_gaps
from chainrule.inference.inspect import TOP
from chainrule.inference.search import Search
from chainrule.inference.subject import TranslationModel
from chainrule.inference.target_choices import TargetToken, target_choices
from chainrule.inference.translate import Translation, translate_lines
from chainrule.inference.why.records import Why
from chainrule.models.options import LiveOption
from chainrule.runs.base import EvaluatedRun, Run
from chainrule.tasks.task import Corpus
from chainrule.text.tokenizers import Tokenizer


class TranslatingRun(EvaluatedRun):
    """A run whose model translates texts."""

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
            **search: Options of the search, the fields of `chainrule.inference.search.Search`: `num_beams`,
                `length_penalty`, `max_new_tokens`, `prefix`, `no_repeat_ngram_size`, `batch_size`, `mode` and others.

        Returns:
            The translation of one text; a list of translations for a list, an iterator for an iterator.
        """
        return answer(texts, (best[0].text for best in self._translations(texts, (), search)))

    def translate_lines(
        self, lines: Texts, *, together: Sequence[TranslatingRun] = (), **search: Any
    ) -> Iterator[list[Translation]]:
        """All translations of each text with their scores, best first, in order, while texts are still being read.

        Args:
            lines: One text, or a list, iterator, column or frame of texts.
            together: Further runs of an ensemble that averages their probabilities.
            **search: Options of the search, the fields of `chainrule.inference.search.Search`; num_return_sequences is
                the number of translations of each text.
        """
        return self._translations(lines, together, search)

    def choices(self, text: str, translation: str | Sequence[int], top: int = 10) -> Results[TargetToken]:
        """What the model would write at each position of a given translation, from one pass over it.

        The log-probabilities add up to what `score_pairs` gives. The tokens up to a choice, as the `prefix` of
        `translate`, translate the rest anew.

        Args:
            text: The source.
            translation: Its translation, as text or as target tokens without `eos`.
            top: Number of choices at each position.

        Returns:
            Each token of the translation, `eos` at the end included, with its log-probability, rank and choices.
        """
        return Results(target_choices(self.subject, text, translation, top=top))

    def _translations(
        self, texts: Texts, together: Sequence[TranslatingRun], search: dict[str, Any]
    ) -> Iterator[list[Translation]]:
        if isinstance(search.get("draft"), Run):
            search["draft"] = search["draft"].subject
        lines = texts_in(texts, self.config.data.source_field)
        return translate_lines([run.subject for run in (self, *together)], lines, self.search_options(search))

    def why(self, source: str, translation: str, position: int = -1, *, top: int = TOP) -> Why:
        """Why a token of a translation has its probability: what was read of the source, the branches of a hybrid.

        Args:
            source: The text that is translated.
            translation: A translation of it, which need not be the run's own.
            position: The token of the translation, counted from 0. -1: its end.
            top: Number of alternatives to list.

        Returns:
            A `Why`; its `reasons` are of the kind "attention", over the source, and "hybrid", where that applies.
        """
        from chainrule.inference.why.translations import why_translation  # it needs torch

        name = self.config.model.name
        return why_translation(self.subject, source, translation, position, model_name=name, top=top)

    def search_options(self, given: Mapping[str, Any]) -> Search:
        """The options of a search: those given, else the run's own defaults for a beam (`decoding` of config.toml).

        Args:
            given: Fields of `chainrule.inference.search.Search`.
        """
        beam = given.get("mode", "ar") == "ar" and given.get("draft") is None
        return Search(**{**(self.config.decoding.model_dump(exclude_none=True) if beam else {}), **given})

    def outputs(
        self, lines: Iterable[str], count: int = 0, progress: Progress | None = None, **search: Any
    ) -> list[str]:
        """The best translation of each line.

        Args:
            lines: The texts.
            count: Their number, for the progress.
            progress: Called with the lines done and `count`.
            **search: Options of the search, as in `translate`.
        """
        outputs = []
        for number, best in enumerate(self.translate_lines(lines, **search), start=1):
            outputs.append(best[0].text)
            if progress:
                progress(number, count)
        return outputs

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
