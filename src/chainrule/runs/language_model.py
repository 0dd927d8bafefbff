"""Runs of language models: evaluate, score, generate, compress."""

from __future__ import annotations

from chainrule.base.grammar import plural
from chainrule.base.progress import Progress
from chainrule.data.in_memory import Data
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.evaluation.text import Evaluation, evaluate, signature
from chainrule.evaluation.validation_budget import final_tokens, scored_part
from chainrule.registry import RUNS
from chainrule.runs.base import EvaluatedRun, ValidationMeasures
from chainrule.runs.generation import GeneratingRun
from chainrule.runs.scoring import ScoringRun
from chainrule.tasks.text_corpus import TextCorpus, refuse_pairs, validation_text
from chainrule.text.readers import open_texts


@RUNS.register("lm")
class LanguageModelRun(ScoringRun, GeneratingRun):
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
        """Loss (nats per token) of the run as it is set now, on the first `limit` tokens.

        Args:
            texts: A path, several paths, or texts in memory. None: the held-out text.
            limit: Number of tokens, the first ones. None: all.
        """
        store = self.open(texts) if texts else self.open_held_out()
        tokens_N = store.tokens[:limit]

        def loss() -> float:
            return evaluate_tokens(self.model, tokens_N, eos=self.tokenizer.eos).cross_entropy

        return ValidationMeasures(
            {"loss": loss}, plural(len(tokens_N), "token"), signature(store, self.tokenizer, self.model)
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
