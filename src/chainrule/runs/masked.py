"""Runs of models that predict masked words.

run = cr.load("runs/bert")
for filled in run.fill("the [MASK] sat on the [MASK]"):
    print(filled.guesses[0].word, filled.guesses[0].probability)
run.evaluate("test.txt").pseudo_perplexity
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import torch

from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.base.results import Results
from chainrule.config import parse
from chainrule.data.in_memory import Data, Texts, answer, texts_in
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import DataError
from chainrule.evaluation.masked import (
    MAX_PSEUDO_TOKENS,
    MaskedEvaluation,
    MaskedProtocol,
    MaskedValidation,
    evaluate_masked,
    make_masking,
    validate_masked,
)
from chainrule.inference.fill import MASK, Filled, Guess, check_top, no_mask, split_at_masks
from chainrule.registry import OBJECTIVES, RUNS
from chainrule.runs.base import EvaluatedRun
from chainrule.tasks.text_corpus import TextCorpus, refuse_pairs, validation_text
from chainrule.text.readers import open_texts

LENGTH = 128
"""Tokens per window of a model that was not trained here."""


@RUNS.register("masked")
class MaskedRun(EvaluatedRun):
    """A trained model of masked words, with its tokeniser and its folder."""

    verbs = ("fill", *EvaluatedRun.verbs)

    # Filling

    @overload
    def fill(  # type: ignore[overload-overlap]  # a string is one text
        self, text: str, top: int = 5
    ) -> list[Filled]: ...

    @overload
    def fill(self, text: Iterator[str], top: int = 5) -> Iterator[list[Filled]]: ...

    @overload
    def fill(self, text: Texts, top: int = 5) -> Results[list[Filled]]: ...

    def fill(self, text: Texts, top: int = 5) -> list[Filled] | Results[list[Filled]] | Iterator[list[Filled]]:
        """The best words for every [MASK] of a text, in order; each is predicted while all others stay masked.

        Args:
            text: One text, or a list, iterator, column or frame of texts.
            top: Number of words for each mask.

        Returns:
            The words for each mask of one text; a list of these for a list, an iterator for an iterator.
        """
        check_top(top)
        return answer(text, (self._fill(one, top) for one in texts_in(text, self.config.data.field)))

    def _fill(self, text: str, top: int) -> list[Filled]:
        tokens = self._with_masks(text)
        if self.model.mask not in tokens:
            raise no_mask()
        before = [self.tokenizer.eos] if self.model.config.first is None else []  # a text begins after a line end
        row_1S = torch.tensor([[*before, *tokens, self.tokenizer.eos]], device=self.device)
        if row_1S.shape[1] > self.model.window:
            raise DataError(
                f"the text has {len(tokens)} tokens, but the model reads at most "
                f"{self.model.window - row_1S.shape[1] + len(tokens)}; shorten it around the {MASK}"
            )
        with evaluating(self.model):
            begun_1S, seen_1S = self.model.prepend_first(row_1S, torch.ones_like(row_1S, dtype=torch.bool))
            logits_MV = self.model.logits(begun_1S, seen_1S)[begun_1S == self.model.mask]
            best = logits_MV.softmax(1).topk(min(top, self.model.vocab_size), 1)
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [Filled([self._guess(*one) for one in zip(*row, strict=True)]) for row in rows]

    def _with_masks(self, text: str) -> list[int]:
        """The tokens of a text, with the mask token for each [MASK]."""
        own = self.model.config.mask
        if own is not None:  # a token of the tokeniser, which handles the spaces around it
            known: list[int] = self.tokenizer.encode_block(text.replace(MASK, self.tokenizer.piece(own))).tolist()
            return known
        tokens: list[int] = []
        for part in split_at_masks(text, joins_spaces=self.tokenizer.joins_spaces):
            tokens += [*self.tokenizer.encode_block(part).tolist(), self.model.mask]
        return tokens[:-1]

    def _guess(self, probability: float, token: int) -> Guess:
        piece, word = self.tokenizer.piece(token), self.tokenizer.decode([token]).strip()
        return Guess(piece if not word or "\ufffd" in word else word, piece, probability)  # a lone byte is no word

    # Measuring

    @property
    def protocol(self) -> MaskedProtocol:
        """How this run is measured: the masking of its training, windows as long as it was trained to read."""
        objective = OBJECTIVES.get("masked").make
        given = self.config.objective.options if self.config.objective.name == "masked" else {}  # not when imported
        options = parse(objective.Config, given, "objective").model_dump()
        config = self.model.config
        masking = make_masking(self.tokenizer, mask=config.mask, first=config.first, **options)
        length = min(self.config.training.length or LENGTH, self.model.window)
        return MaskedProtocol(masking, length, config.first)

    def open(self, texts: Data, *, field: str | None = None) -> TokenStore:
        """A corpus as this run's tokens.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
        """
        opened = open_texts(self.files(texts, field), field=field or self.config.data.field)
        return open_store(opened, self.tokenizer)

    def open_held_out(self) -> TokenStore:
        """The validation text as this run's tokens."""
        if isinstance(self.corpus, TextCorpus):
            return self.corpus.valid
        return open_store(validation_text(self.config.data), self.tokenizer)

    def evaluate(
        self,
        texts: Data,
        *,
        field: str | None = None,
        progress: Progress | None = None,
        most: int | None = MAX_PSEUDO_TOKENS,
    ) -> MaskedEvaluation:
        """Masked accuracy and pseudo-perplexity on a corpus, with protocol and signature.

        Args:
            texts: A path, several paths, or a list, column or frame of texts.
            field: Name of the column or JSON field with the texts. None: that of the training.
            progress: Called with the tokens scored and the total.
            most: Number of tokens that are masked one by one for the pseudo-perplexity, evenly spread over the text.
                None: all.
        """
        texts = self.files(texts, field)
        refuse_pairs(texts, self.config.model.name)
        store = self.open(texts, field=field)
        return evaluate_masked(self.model, store, self.tokenizer, self.protocol, most=most, progress=progress)

    def evaluate_held_out(self, most: int | None = MAX_PSEUDO_TOKENS) -> MaskedEvaluation:
        """The same on the validation text of the training: the given one, or the one that was held out.

        Args:
            most: Largest number of tokens whose pseudo-log-likelihood is measured. None: all.
        """
        return evaluate_masked(self.model, self.open_held_out(), self.tokenizer, self.protocol, most=most)

    def validation(self) -> MaskedValidation:
        """Accuracy on masked words of the validation text."""
        tokens = self.open_held_out().tokens[: self.config.training.valid_tokens]
        return validate_masked(self.model, tokens, self.protocol)
