"""Runs of language models: evaluate, score, generate, compress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

from chainrule.base.devices import threads
from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.data.in_memory import Data, Texts, answer, texts_in
from chainrule.data.store import TokenStore, open_store
from chainrule.decoding import DraftStatistics
from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.speculative import DRAFT_TOKENS
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import Evaluation, evaluate, signature
from chainrule.evaluation.validation_budget import final_tokens, scored_part
from chainrule.inference.drafts import LOOKUP
from chainrule.inference.few_shot import Choice, Question, choose
from chainrule.inference.generate import Generated, GenerationOptions, generate_texts, stream_text
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
from chainrule.inference.score import LineScore, score_lines, score_text
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import OovKind, UnknownWords
from chainrule.registry import RUNS
from chainrule.runs.archives import ArchivingRun
from chainrule.runs.base import EvaluatedRun, Run, ValidationMeasures
from chainrule.runs.load import load_for
from chainrule.tasks.text_corpus import TextCorpus, refuse_pairs, validation_text
from chainrule.text.readers import open_texts


@RUNS.register("lm")
class LanguageModelRun(ArchivingRun):
    """A trained language model with its tokeniser and its folder."""

    verbs = ("score", "rescore", "tune", "generate", "compress", "decompress", "mix", *EvaluatedRun.verbs)

    # Measuring

    def open(self, texts: Data, *, field: str | None = None, progress: Progress | None = None) -> TokenStore:
        """A corpus as this run's tokens.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
            progress: Called with the bytes done and the total.
        """
        opened = open_texts(self.files(texts, field), field=field or self.config.data.field)
        return open_store(opened, self.tokenizer, progress=progress)

    def evaluate(
        self,
        texts: Data,
        *,
        field: str | None = None,
        accuracy: bool = False,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Perplexity, bits per byte and more on a corpus, with protocol and signature.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
            accuracy: Whether to measure how often the next token is the most probable one, or among five (slower).
            progress: Called with the tokens scored and the total.
        """
        texts = self.files(texts, field)
        refuse_pairs(texts, self.config.model.name)
        store = self.open(texts, field=field)
        return evaluate(self.model, store, self.tokenizer, accuracy=accuracy, progress=progress)

    def evaluate_held_out(self) -> Evaluation:
        """The same on the validation text of the training: the given one, or the one that was held out."""
        if self.counted_all:  # measured before it was counted
            return Evaluation(**self.result["valid"])
        return evaluate(self.model, self.open_held_out(), self.tokenizer)

    def validation(self) -> Evaluation:
        if self.counted_all or self.config.data.valid or "tokens" not in self.result:
            return self.evaluate_held_out()
        store = self.open_held_out()
        part = store.first(final_tokens(self.result["tokens"]))
        self.validation_note = scored_part(part.bytes, store.bytes, "bytes")
        return evaluate(self.model, part, self.tokenizer)

    @property
    def counted_all(self) -> bool:
        """Whether the text that was held out for validation has been counted since."""
        return "valid" in self.result

    def validation_measures(self, texts: Data | None = None, limit: int | None = None) -> ValidationMeasures:
        """Loss (nats per token) of the run as it is set now, on the first `limit` tokens."""
        store = self.open(texts) if texts else self.open_held_out()
        tokens_N = store.tokens[:limit]

        def loss() -> float:
            return evaluate_tokens(self.model, tokens_N, eos=self.tokenizer.eos).cross_entropy

        return ValidationMeasures(
            {"loss": loss}, f"{len(tokens_N):,} tokens", signature(store, self.tokenizer, self.model)
        )

    def open_held_out(self) -> TokenStore:
        """The validation text as this run's tokens."""
        if self.counted_all:
            raise ConfigError(
                f"{self.name} counts all of its text, so none of it is held out; give a validation text, or train it "
                "with --set training.count_all=false"
            )
        if isinstance(self.corpus, TextCorpus):
            return self.corpus.valid
        return open_store(validation_text(self.config.data), self.tokenizer)

    @overload
    def score(  # type: ignore[overload-overlap]  # a string is one text
        self, texts: str, *, oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> LineScore: ...

    @overload
    def score(
        self, texts: Iterator[str], *, oov: OovKind = ..., oov_penalty: float | None = ...
    ) -> Iterator[LineScore]: ...

    @overload
    def score(self, texts: Texts, *, oov: OovKind = ..., oov_penalty: float | None = ...) -> Results[LineScore]: ...

    def score(
        self, texts: Texts, *, oov: OovKind = "unk", oov_penalty: float | None = None
    ) -> LineScore | Results[LineScore] | Iterator[LineScore]:
        """log p of each text separately, its `<eos>` included.

        Args:
            texts: One text, or a list, iterator, column or frame of texts. They are scored in groups.
            oov: What an unknown word costs besides log p of `<unk>`: nothing ("unk"), its spelling ("spell"), or
                `oov_penalty` ("penalty").
            oov_penalty: Nats for each unknown word.

        Returns:
            One `LineScore` for one text, a list of them for a list, an iterator for an iterator.
        """
        lines = texts_in(texts, self.config.data.field)
        return answer(texts, score_lines(self.subject, lines, UnknownWords(oov, oov_penalty)))

    def score_text(
        self,
        texts: Data,
        *,
        field: str | None = None,
        threads: int | None = None,
        oov: OovKind = "unk",
        oov_penalty: float | None = None,
    ) -> Iterator[tuple[list[float], list[int]]]:
        """log p and number of tokens of each line of a corpus, in order, a block of lines at a time.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
            threads: Number of threads. None: one per core.
            oov: What an unknown word costs, as in `score`.
            oov_penalty: Nats for each unknown word, as in `score`.
        """
        opened = open_texts(self.files(texts, field), field=field or self.config.data.field)
        return score_text(self.subject, opened, threads, UnknownWords(oov, oov_penalty))

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
        """The weights for `rescore` with the best "wer" or "bleu" on lists with one reference each, in their order."""
        unknown = UnknownWords(oov, oov_penalty)
        scored = score_candidates(self.subject, list(read_candidates(nbest)), unknown)
        return fit_rescoring(scored, references, metric)

    def generation_speed(self, tokens: int = 200) -> float:
        """Tokens per second when one text is generated."""
        with threads(1):
            return generation_speed(self.model, eos=self.tokenizer.eos, tokens=tokens)

    # Generating

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        num_beams: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        length_penalty: float = LENGTH_PENALTY,
        num_return_sequences: int = 1,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
        mode: str = "ar",
    ) -> list[Generated]:
        """Continue a prompt: greedily, by beam if `num_beams` > 1, or by sampling if one of its options is set.

        A text ends before the first `stop` after the prompt. A `draft`, another run over the same tokens or "lookup",
        speeds up one text without changing it. A `hybrid-lm` has more modes than "ar": "nar" generates whole blocks in
        parallel, "draft" gives the text of "ar" with drafts of its own.
        """
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            num_return_sequences=num_return_sequences,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop_at_eos=stop_at_eos,
            stop=stop,
            draft=self._draft(draft),
            draft_tokens=draft_tokens,
            mode=mode,
        )
        return generate_texts(self.subject, prompt, options)

    def stream(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
        mode: str = "ar",
        drafted: DraftStatistics | None = None,
    ) -> Iterator[str]:
        """The prompt, then its continuation in pieces as they are generated; joined, they are what `generate` gives.

        `drafted` is kept up to date with the statistics of the passes.
        """
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop_at_eos=stop_at_eos,
            stop=stop,
            draft=self._draft(draft),
            draft_tokens=draft_tokens,
            mode=mode,
        )
        return stream_text(self.subject, prompt, options, drafted)

    def _draft(self, draft: Run | str | Path | None) -> TextModel | str | None:
        if isinstance(draft, Run):
            if not isinstance(draft, LanguageModelRun):
                raise draft.missing("generate")
            return draft.subject
        if draft is None or draft == LOOKUP:
            return LOOKUP if draft else None
        return load_for("generate", LanguageModelRun, draft, device=str(self.device)).subject
