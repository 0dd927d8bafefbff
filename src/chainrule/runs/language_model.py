"""Runs of language models: evaluate, score, generate, compress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from chainrule.base.devices import threads
from chainrule.base.progress import Progress
from chainrule.data.in_memory import Data
from chainrule.data.store import TokenStore, open_store
from chainrule.decoding import DraftStatistics
from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.speculative import DRAFT_TOKENS
from chainrule.errors import ConfigError
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import Evaluation, evaluate, signature
from chainrule.evaluation.validation_budget import final_tokens, scored_part
from chainrule.inference.drafts import LOOKUP
from chainrule.inference.generate import Generated, GenerationOptions, generate_texts, stream_text
from chainrule.inference.subject import TextModel
from chainrule.registry import RUNS
from chainrule.runs.base import EvaluatedRun, Run, ValidationMeasures
from chainrule.runs.load import load_for
from chainrule.runs.scoring import ScoringRun
from chainrule.tasks.text_corpus import TextCorpus, refuse_pairs, validation_text
from chainrule.text.readers import open_texts


@RUNS.register("lm")
class LanguageModelRun(ScoringRun):
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
