"""Runs that score texts: log p of lines, choices, prefixes and n-best lists, and the details of every token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from chainrule.base.results import Results
from chainrule.data.in_memory import Data, Texts, answer, texts_in
from chainrule.errors import DataError
from chainrule.inference.attention import Attention, attention_of_lines
from chainrule.inference.few_shot import Choice, Question, choose
from chainrule.inference.inspect import TOP, TokenDetails, inspect_lines
from chainrule.inference.prefix import Prefix
from chainrule.inference.rescore import (
    Candidate,
    MetricName,
    Rescoring,
    fit_rescoring,
    read_candidates,
    rerank,
    score_candidates,
)
from chainrule.inference.score import LineScore, score_lines, score_text, unit_of
from chainrule.inference.surprise import Surprise, surprise_texts
from chainrule.inference.unknown_words import OovKind, UnknownWords
from chainrule.inference.why.explain import why
from chainrule.inference.why.records import Why
from chainrule.runs.archives import ArchivingRun
from chainrule.text.readers import open_texts


class ScoringRun(ArchivingRun):
    """A run whose model gives the probability of texts."""

    @overload
    def score(  # type: ignore[overload-overlap]  # a string is one text
        self, texts: str, *, oov: OovKind = ..., oov_penalty: float | None = ..., base: float = ...
    ) -> LineScore: ...

    @overload
    def score(
        self, texts: Iterator[str], *, oov: OovKind = ..., oov_penalty: float | None = ..., base: float = ...
    ) -> Iterator[LineScore]: ...

    @overload
    def score(
        self, texts: Texts, *, oov: OovKind = ..., oov_penalty: float | None = ..., base: float = ...
    ) -> Results[LineScore]: ...

    def score(
        self, texts: Texts, *, oov: OovKind = "unk", oov_penalty: float | None = None, base: float = math.e
    ) -> LineScore | Results[LineScore] | Iterator[LineScore]:
        """log p of each text separately, its `<eos>` included.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. They are scored in groups.
            oov: What an unknown word costs besides log p of `<unk>`: nothing ("unk"), its spelling ("spell"), or
                `oov_penalty` ("penalty").
            oov_penalty: Nats for each unknown word.
            base: Base of the logarithms, for example 10 as in KenLM, or 2 for bits.

        Returns:
            One `LineScore` for one text, a list of them for a list, an iterator for an iterator.
        """
        lines = texts_in(texts, self.config.data.field)
        return answer(texts, score_lines(self.subject, lines, UnknownWords(oov, oov_penalty), unit_of(base)))

    def score_text(
        self,
        texts: Data,
        *,
        field: str | None = None,
        threads: int | None = None,
        oov: OovKind = "unk",
        oov_penalty: float | None = None,
        base: float = math.e,
    ) -> Iterator[tuple[list[float], list[int]]]:
        """log p and number of tokens of each line of a corpus, in order, a block of lines at a time.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
            threads: Number of threads. None: one per core.
            oov: What an unknown word costs, as in `score`.
            oov_penalty: Nats for each unknown word, as in `score`.
            base: Base of the logarithms, as in `score`.
        """
        opened = open_texts(self.files(texts, field), field=field or self.config.data.field)
        return score_text(self.subject, opened, threads, UnknownWords(oov, oov_penalty), unit=unit_of(base))

    @overload
    def inspect(  # type: ignore[overload-overlap]  # a string is one text
        self, texts: str, *, top: int = ..., oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Results[TokenDetails]: ...

    @overload
    def inspect(
        self, texts: Iterator[str], *, top: int = ..., oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Iterator[Results[TokenDetails]]: ...

    @overload
    def inspect(
        self, texts: Texts, *, top: int = ..., oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Results[Results[TokenDetails]]: ...

    def inspect(
        self, texts: Texts, *, top: int = TOP, oov: OovKind = "unk", oov_penalty: float | None = None
    ) -> Results[TokenDetails] | Results[Results[TokenDetails]] | Iterator[Results[TokenDetails]]:
        """Every token of a text with its rank, its probability, the entropy before it and the best alternatives.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. Each is read separately, as in `score`.
            top: Number of alternatives per token, at least 0.
            oov: What an unknown word costs besides log p of `<unk>`, as in `score`.
            oov_penalty: Nats for each unknown word, as in `score`.

        Returns:
            The `TokenDetails` of one text, its `<eos>` included, as a list with `to_pandas()`; a list of these for a
            list, an iterator for an iterator.
        """
        lines = texts_in(texts, self.config.data.field)
        return answer(texts, inspect_lines(self.subject, lines, top, UnknownWords(oov, oov_penalty)))

    @overload
    def surprise(self, texts: str, *, top: int = ...) -> Surprise: ...  # type: ignore[overload-overlap]

    @overload
    def surprise(self, texts: Iterator[str], *, top: int = ...) -> Iterator[Surprise]: ...

    @overload
    def surprise(self, texts: Texts, *, top: int = ...) -> Results[Surprise]: ...

    def surprise(self, texts: Texts, *, top: int = TOP) -> Surprise | Results[Surprise] | Iterator[Surprise]:
        """What a text costs in bits, token by token; all parts add up to what `evaluate` charges for it.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. Each is read as a file with this content
                would be: a newline is `<eos>`, and there is no other end.
            top: Number of alternatives per token, at least 0.

        Returns:
            A `Surprise`: its `tokens` with place, bits, probability, rank, entropy and alternatives, `bits`,
            `bits_per_byte`, `to_dict()`, `to_pandas()`; a notebook shows the text coloured by bits. A list of these
            for a list, an iterator for an iterator.
        """
        given = texts_in(texts, self.config.data.field, newlines=True)
        return answer(texts, surprise_texts(self.subject, given, top))

    @overload
    def attention(self, texts: str) -> Attention: ...  # type: ignore[overload-overlap]  # a string is one text

    @overload
    def attention(self, texts: Iterator[str]) -> Iterator[Attention]: ...

    @overload
    def attention(self, texts: Texts) -> Results[Attention]: ...

    def attention(self, texts: Texts) -> Attention | Results[Attention] | Iterator[Attention]:
        """The self-attention weights of every layer and head over a text, where the model has some.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. Each is read separately, as in `score`.

        Returns:
            For one text its `tokens`, beginning with `<eos>`, and the array `weights` of (layers, heads, T, T); a list
            of these for a list, an iterator for an iterator.
        """
        return answer(texts, attention_of_lines(self.subject, texts_in(texts, self.config.data.field)))

    def why(self, text: str, position: int = -1, *, top: int = TOP) -> Why:
        """Why a token of a text has its probability: what its model looked at, by the kind of the model.

        Args:
            text: The text, read as in `surprise`.
            position: The token, counted from 0 as in the `tokens` of `surprise`. -1: the last.
            top: Number of alternatives and of remembered tokens to list.

        Returns:
            A `Why`: token, probability, bits (without the spelling of an unknown word) and `reasons`, records whose
            `kind` is "context" for every model, and "backoff", "mixture", "cache", "attention", "recurrent" or
            "hybrid" where that applies; `to_dict()`.
        """
        return why(self.subject, text, position, model_name=self.config.model.name, top=top)

    @overload
    def choose(  # type: ignore[overload-overlap]  # a string is one text
        self, prompt: str, choices: Texts, *, oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> list[Choice]: ...

    @overload
    def choose(
        self, prompt: Iterator[str], choices: Texts, *, oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Iterator[list[Choice]]: ...

    @overload
    def choose(
        self, prompt: Texts, choices: Texts, *, oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Results[list[Choice]]: ...

    def choose(
        self, prompt: Texts, choices: Texts, *, oov: OovKind = "spell", oov_penalty: float | None = None
    ) -> list[Choice] | Results[list[Choice]] | Iterator[list[Choice]]:
        """Each alternative with its log p after a prompt; `chainrule.inference.few_shot.best_of` takes the best.

        Args:
            prompt: One prompt, or a list, iterator, column or frame of prompts.
            choices: The alternatives, the same after every prompt.
            oov: What an unknown word costs, as in `score`; by default its spelling, so that nonsense is not preferred.
            oov_penalty: Nats for each unknown word, as in `score`.

        Returns:
            The alternatives in the order given for one prompt; a list of these for a list, an iterator for an iterator.
        """
        if isinstance(choices, str):
            raise DataError(f"the choices are one string, {choices!r}; expected a list of texts; give [{choices!r}]")
        given = tuple(texts_in(choices, newlines=True))
        prompts = texts_in(prompt, self.config.data.field, newlines=True)
        questions = (Question(one, given) for one in prompts)
        return answer(prompt, choose(self.subject, questions, UnknownWords(oov, oov_penalty)))

    def start(self) -> Prefix:
        """The empty text, to be scored as it grows: `prefix.feed("the cat")` gives log p of each token."""
        return Prefix(self.subject)

    def rescore(
        self,
        nbest: Iterable[str],
        *,
        weight: float = 0.5,
        word_penalty: float = 0.0,
        oov: OovKind = "spell",
        oov_penalty: float | None = None,
    ) -> list[list[Candidate]]:
        """N-best lists re-ranked by score + `weight` · log p + `word_penalty` · words, best first.

        Args:
            nbest: Lines `id ||| text ||| score`, or JSON lines with these fields; one list per id.
            weight: Weight of log p of this model, in nats.
            word_penalty: Added per word.
            oov: What unknown words cost besides log p of `<unk>`, as in `score`.
            oov_penalty: Nats per unknown word with oov "penalty".
        """
        unknown = UnknownWords(oov, oov_penalty)
        scored = score_candidates(self.subject, list(read_candidates(nbest)), unknown)
        return rerank(scored, weight, word_penalty)

    def fit_rescoring(
        self,
        nbest: Iterable[str],
        *references: Sequence[str],
        metric: MetricName = "wer",
        oov: OovKind = "spell",
        oov_penalty: float | None = None,
    ) -> Rescoring:
        """The weights for `rescore` with the best "wer" or "bleu" on lists with one reference each, in their order.

        Args:
            nbest: The lists, as in `rescore`.
            *references: One or more lists of references, one text per list of candidates.
            metric: What is optimised: "wer" or "bleu".
            oov: What unknown words cost besides log p of `<unk>`, as in `score`.
            oov_penalty: Nats per unknown word with oov "penalty".
        """
        unknown = UnknownWords(oov, oov_penalty)
        scored = score_candidates(self.subject, list(read_candidates(nbest)), unknown)
        return fit_rescoring(scored, references, metric)
