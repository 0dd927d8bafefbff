"""Runs that generate text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from chainrule.base.devices import threads
from chainrule.base.results import Results
from chainrule.data.in_memory import Texts, answer, texts_in
from chainrule.decoding import DraftStatistics
from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.speculative import DRAFT_TOKENS
from chainrule.evaluation.speed import generation_speed
from chainrule.inference.drafts import LOOKUP
from chainrule.inference.generate import Generated, generate_texts, stream_text
from chainrule.inference.generation_options import GenerationOptions
from chainrule.inference.next_token import NextToken, next_token
from chainrule.inference.subject import TextModel
from chainrule.runs.archives import ArchivingRun
from chainrule.runs.base import Run
from chainrule.runs.load import load_for


class GeneratingRun(ArchivingRun):
    """A run whose model continues a text."""

    def generation_speed(self, tokens: int = 200) -> float:
        """Tokens per second when one text is generated.

        Args:
            tokens: Number of tokens that are generated.
        """
        with threads(1):
            return generation_speed(self.model, eos=self.tokenizer.eos, tokens=tokens)

    def next_token(self, text: str = "", *, tokens: Sequence[int] = ()) -> NextToken:
        """The distribution of the token after a text.

        Args:
            text: The text; a newline is `<eos>`.
            tokens: Further tokens after it, as ids.

        Returns:
            A `NextToken`: `log_probs_V`, `entropy`, `best(top)`, and `filtered(temperature, top_k, top_p, min_p)`,
            from which `generate` draws with these options.
        """
        return next_token(self.subject, text, tokens)

    @overload
    def generate(self, prompt: str = ..., **options: Any) -> list[Generated]: ...

    @overload
    def generate(self, prompt: Iterator[str], **options: Any) -> Iterator[list[Generated]]: ...

    @overload
    def generate(self, prompt: Texts, **options: Any) -> Results[list[Generated]]: ...

    def generate(  # type: ignore[misc]  # the overloads leave the options to this signature
        self,
        prompt: Texts = "",
        *,
        max_new_tokens: int = 200,
        num_beams: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        length_penalty: float = LENGTH_PENALTY,
        num_return_sequences: int = 1,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
        mode: str = "ar",
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        no_unk: bool = False,
        min_new_tokens: int = 0,
    ) -> list[Generated] | Results[list[Generated]] | Iterator[list[Generated]]:
        """Continue a prompt: greedily, by beam if `num_beams` > 1, or by sampling if one of its options is set.

        A text ends before the first `stop` after the prompt. A `draft`, another run over the same tokens or "lookup",
        speeds up one text without changing it. A `hybrid-lm` has more modes than "ar": "nar" generates whole blocks in
        parallel, "draft" gives the text of "ar" with drafts of its own.

        Args:
            prompt: One prompt, or a list, iterator, column or frame of prompts.
            max_new_tokens: Maximum number of tokens to generate.
            num_beams: Beam width. 1: greedy search.
            temperature: Sample at this temperature. 0: greedy search.
            top_k: Sample from the k most probable tokens.
            top_p: Sample from the most probable tokens whose probabilities add up to p.
            min_p: Sample from the tokens that are at least p times as probable as the best one.
            length_penalty: Rank the hypotheses of a beam by log p / length^penalty.
            num_return_sequences: Number of texts for each prompt.
            seed: Random seed of the samples. With several prompts, each begins with it.
            stop_at_eos: Whether a text ends with its line. None: for word tokenisers only.
            stop: Strings before which a text ends.
            draft: A run over the same tokens that drafts, or "lookup".
            draft_tokens: Maximum number of tokens per draft.
            mode: One of the modes of the model.
            repetition_penalty: Multiply log p of tokens that occur in the text by this. 1: no penalty.
            no_repeat_ngram_size: Generate no n-gram of this number of tokens twice. 0: allow it.
            no_unk: Never generate the unknown token.
            min_new_tokens: Do not end before this number of new tokens.

        Returns:
            The texts for one prompt; a list of these for a list of prompts, an iterator for an iterator.
        """
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            num_return_sequences=num_return_sequences,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop_at_eos=stop_at_eos,
            stop=stop,
            draft=self._draft(draft),
            draft_tokens=draft_tokens,
            mode=mode,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            no_unk=no_unk,
            min_new_tokens=min_new_tokens,
        )
        subject = self.subject
        texts = texts_in(prompt, self.config.data.field, newlines=True)
        return answer(prompt, (generate_texts(subject, one, options) for one in texts))

    def stream(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop_at_eos: bool | None = None,
        stop: str | Sequence[str] = (),
        draft: Run | str | Path | None = None,
        draft_tokens: int = DRAFT_TOKENS,
        mode: str = "ar",
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        no_unk: bool = False,
        min_new_tokens: int = 0,
        drafted: DraftStatistics | None = None,
    ) -> Iterator[str]:
        """The prompt, then its continuation in pieces as they are generated; joined, they are what `generate` gives.

        Args:
            prompt: The beginning of the text.
            max_new_tokens: Maximum number of tokens to generate.
            temperature: Sample at this temperature. 0: greedy search.
            top_k: Sample from the k most probable tokens.
            top_p: Sample from the most probable tokens whose probabilities add up to p.
            min_p: Sample from the tokens that are at least p times as probable as the best one.
            seed: Random seed of the samples.
            stop_at_eos: Whether a text ends with its line. None: for word tokenisers only.
            stop: Strings before which the text ends.
            draft: A run over the same tokens that drafts, or "lookup".
            draft_tokens: Maximum number of tokens per draft.
            mode: One of the modes of the model.
            repetition_penalty: Multiply log p of tokens that occur in the text by this. 1: no penalty.
            no_repeat_ngram_size: Generate no n-gram of this number of tokens twice. 0: allow it.
            no_unk: Never generate the unknown token.
            min_new_tokens: Do not end before this number of new tokens.
            drafted: Is kept up to date with the statistics of the passes.
        """
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop_at_eos=stop_at_eos,
            stop=stop,
            draft=self._draft(draft),
            draft_tokens=draft_tokens,
            mode=mode,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            no_unk=no_unk,
            min_new_tokens=min_new_tokens,
        )
        return stream_text(self.subject, prompt, options, drafted)

    def _draft(self, draft: Run | str | Path | None) -> TextModel | str | None:
        if isinstance(draft, Run):
            if not isinstance(draft, GeneratingRun):
                raise draft.missing("generate")
            return draft.subject
        if draft is None or draft == LOOKUP:
            return LOOKUP if draft else None
        return load_for("generate", GeneratingRun, draft, device=str(self.device)).subject
