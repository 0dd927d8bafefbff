"""A trained model that tells hidden words: what `load` gives for a run of bert.

run = cr.load("runs/bert")
for filled in run.fill("the [MASK] sat on the [MASK]"):
    print(filled.guesses[0].word, filled.guesses[0].probability)
run.evaluate("test.txt").pseudo_perplexity
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import parse
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.evaluation.masked import (
    MOST,
    MaskedEvaluation,
    MaskedValidation,
    Measure,
    evaluate_masked,
    masking_of,
    validate_masked,
)
from chainrule.registry import OBJECTIVES
from chainrule.runs.language_model import Paths, Run, path_strings
from chainrule.tasks.language_model import refuse_pairs

MASK = "[MASK]"
"""What stands in a text for a hidden word, whatever the tokeniser calls it."""

LENGTH = 128
"""Tokens of a window where no training tells how many they should be."""


@dataclass(frozen=True)
class Guess:
    """A word that may have been hidden."""

    word: str
    token: str  # the piece of the tokeniser, with its marks
    probability: float


@dataclass(frozen=True)
class Filled:
    """What a model finds most probable for one hidden word, the best first."""

    guesses: list[Guess]

    @property
    def word(self) -> str:
        """The best."""
        return self.guesses[0].word


def load_masked(path: str | Path, *, device: str = "auto") -> MaskedRun:
    """The run of a model that tells hidden words; any other is refused."""
    name = RunFolder(path).read_config().model.name
    if name != "bert":
        raise RunError(
            f"{path} is a {name}, which tells no hidden words; train one that does with: chainrule train TEXT --model "
            "bert, or use chainrule generate"
        )
    return MaskedRun(path, device=device)


class MaskedRun(Run):
    """A trained model that tells hidden words, with its tokeniser and its folder."""

    # Filling

    def fill(self, text: str, top: int = 5) -> list[Filled]:
        """The best words for every [MASK] of a text, in order; each while all the others stay hidden."""
        if top < 1:
            raise ConfigError(f"top is {top}; ask for at least 1 word")
        tokens = self._with_masks(text)
        if self.model.mask not in tokens:
            raise DataError(f"the text has no {MASK}; write it where a word is to be found, as in: the {MASK} sat")
        before = [self.tokenizer.eos] if self.model.config.first is None else []  # a text begins where a line ended
        row_1S = torch.tensor([[*before, *tokens, self.tokenizer.eos]], device=self.device)
        if row_1S.shape[1] > self.model.window:
            raise DataError(
                f"the text has {len(tokens)} tokens, but the model reads at most "
                f"{self.model.window - row_1S.shape[1] + len(tokens)}; shorten it around the {MASK}"
            )
        with evaluating(self.model):
            begun_1S, seen_1S = self.model.begun(row_1S, torch.ones_like(row_1S, dtype=torch.bool))
            logits_NV = self.model.logits(begun_1S, seen_1S)[begun_1S == self.model.mask]
            best = logits_NV.softmax(1).topk(min(top, self.model.vocab_size), 1)
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [Filled([self._guess(*one) for one in zip(*row, strict=True)]) for row in rows]

    def _with_masks(self, text: str) -> list[int]:
        """The tokens of a text, a mask for each [MASK]."""
        own = self.model.config.mask
        if own is not None:  # a token of the tokeniser, which knows best what goes with it
            known: list[int] = self.tokenizer.encode_block(text.replace(MASK, self.tokenizer.piece(own))).tolist()
            return known
        tokens: list[int] = []
        parts = text.split(MASK)
        for number, part in enumerate(parts):
            if number < len(parts) - 1 and self._takes_spaces:
                part = part.rstrip(" ")
            tokens += [*self.tokenizer.encode_block(part).tolist(), self.model.mask]
        return tokens[:-1]

    @property
    def _takes_spaces(self) -> bool:
        """Whether the space before a word is part of its piece, so that what hides the word hides the space."""
        return self.tokenizer.kind in ("bpe", "unigram", "sentencepiece", "huggingface")

    def _guess(self, probability: float, token: int) -> Guess:
        piece, word = self.tokenizer.piece(token), self.tokenizer.decode([token]).strip()
        return Guess(piece if not word or "\ufffd" in word else word, piece, probability)  # a byte alone is no word

    # Measuring

    @property
    def measure(self) -> Measure:
        """How this run is measured: the shares of its training, windows as long as it was trained to read."""
        objective = OBJECTIVES.get("masked").make
        told = self.config.objective.options if self.config.objective.name == "masked" else {}  # not when imported
        options = parse(objective.Config, told, "objective").model_dump()
        config = self.model.config
        masking = masking_of(self.tokenizer, mask=config.mask, first=config.first, **options)
        length = min(self.config.training.length or LENGTH, self.model.window)
        return Measure(masking, length, config.first)

    def evaluate(  # type: ignore[override]
        self, texts: Paths, *, field: str | None = None, progress: Progress | None = None, most: int | None = MOST
    ) -> MaskedEvaluation:
        """Masked accuracy and pseudo-perplexity on a text, with protocol and signature.

        For the second at most `most` tokens are hidden one by one, evenly spread over the text; None: all of them.
        """
        refuse_pairs(path_strings(texts), self.config.model.name)
        store = self.open(texts, field=field)
        return evaluate_masked(self.model, store, self.tokenizer, self.measure, most=most, progress=progress)

    def evaluate_held_out(self, most: int | None = MOST) -> MaskedEvaluation:  # type: ignore[override]
        """The same on the validation text of the training: the one that was given, or the one that was held out."""
        return evaluate_masked(self.model, self.open_held_out(), self.tokenizer, self.measure, most=most)

    def validation(self) -> MaskedValidation:  # type: ignore[override]
        """What a training tells of its validation text when it has ended: how often hidden words are told."""
        tokens = self.open_held_out().tokens[: self.config.training.valid_tokens]
        return validate_masked(self.model, tokens, self.measure)

    # What a model that tells hidden words does not do

    def _refuse(self, *args: object, **options: object) -> NoReturn:
        raise ConfigError(
            f"{self.folder.path} is a {self.config.model.name}, which tells hidden words and gives a text no "
            "probability; use chainrule fill, or a language model"
        )

    generate = stream = compress = decompress = score = score_text = generation_speed = _refuse
