"""Filling the gaps of a text with a model that was trained on span corruption, such as T5.

    Thank you [MASK] me to your [MASK]    →    Thank you X me to your Y    →    X for inviting Y party Z

Each [MASK] becomes a sentinel in the source, and the decoder writes the sentinels with the words between them. Gaps are
filled one after the other by beam search, each given the best filling of the gaps before it. The probability of a
filling is that of its tokens and of the end of the gap, by the chain rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from chainrule.base.modes import evaluating
from chainrule.data.pairs import pad_sources
from chainrule.decoding.beam import Hypothesis, beam_search
from chainrule.errors import ConfigError, DataError
from chainrule.inference.subject import TranslationModel
from chainrule.types import State, SteppingModel

MASK = "[MASK]"
"""Marks a missing word or gap in a text, whatever the tokeniser calls its mask."""

MAX_GAP = 24
"""Most tokens in a gap."""

BEAMS = 5
"""Least width of the beam."""


@dataclass(frozen=True)
class Guess:
    """What may have been masked: a word, or the words of a gap."""

    word: str
    token: str  # the pieces of the tokeniser, with their marks
    probability: float


@dataclass(frozen=True)
class Filled:
    """The most probable fillings of one mask, best first."""

    guesses: list[Guess]

    @property
    def word(self) -> str:
        """The best filling."""
        return self.guesses[0].word


def check_top(top: int) -> None:
    """Refuse an impossible number of guesses."""
    if top < 1:
        raise ConfigError(f"top is {top}; ask for at least 1 word")


def no_mask() -> DataError:
    """The error for a text without a mask."""
    return DataError(f"the text has no {MASK}; write it in place of a word, for example: the {MASK} sat")


def split_at_masks(text: str, *, joins_spaces: bool) -> list[str]:
    """The parts of a text around its masks. If tokens join spaces to words, a mask covers the space before its word."""
    *parts, last = text.split(MASK)
    return [*(part.rstrip(" ") if joins_spaces else part for part in parts), last]


def fill_gaps(subject: TranslationModel, text: str, top: int) -> list[Filled]:
    """The `top` best fillings of every [MASK] of a text, in order."""
    if MASK not in text:
        raise no_mask()
    sentinels = _sentinels(subject, text.count(MASK) + 1)
    source_row = _source_row(subject, text, sentinels)
    source = pad_sources([source_row], subject.source_tokenizer.eos, subject.device)
    model, prompt, filled = subject.model, [subject.tokenizer.eos], list[Filled]()
    with torch.inference_mode(), evaluating(model):
        for begin, end in pairwise(sentinels):
            prompt = [*prompt, begin]
            stepper = _GapStepper(model, end, [subject.tokenizer.eos, *(one for one in sentinels if one != end)])
            found = beam_search(
                stepper,
                model.start(source),
                torch.tensor([prompt], device=subject.device),
                eos=end,
                beams=max(top, BEAMS),
                max_new_tokens=_limit(subject, len(prompt)),
                length_penalty=0.0,
                num_return_sequences=top,
            )[0]
            gaps = [_without_end(hypothesis, end) for hypothesis in found]
            filled.append(Filled([_guess(subject, gap, one.log_prob) for gap, one in zip(gaps, found, strict=True)]))
            prompt = [*prompt, *gaps[0]]
    return filled


class _GapStepper(SteppingModel):
    """A model within a gap: only `end` ends it, not at once, and no other sentinel is written."""

    def __init__(self, model: Any, end: int, banned: Sequence[int]) -> None:
        self.model, self.end, self.banned = model, end, torch.tensor(banned)
        self.vocab_size, self.eos = model.vocab_size, end

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        log_probs_BV, state = self.model.prefill(state, tokens_BT)
        allowed_BV = self._allow(log_probs_BV)
        allowed_BV[:, self.end] = -math.inf
        return allowed_BV, state

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        log_probs_BV, state = self.model.step(state, token_B)
        return self._allow(log_probs_BV), state

    def _allow(self, log_probs_BV: Tensor) -> Tensor:
        """The end of the text counts as the end of the gap."""
        allowed_BV = log_probs_BV.clone()
        allowed_BV[:, self.end] = torch.logaddexp(log_probs_BV[:, self.end], log_probs_BV[:, int(self.banned[0])])
        allowed_BV[:, self.banned.to(log_probs_BV.device)] = -math.inf
        return allowed_BV


def _sentinels(subject: TranslationModel, count: int) -> list[int]:
    """The tokens that mark gaps: those of the model, or those of the tokeniser it was imported with."""
    known = list(subject.model.sentinels)[:count]
    if not known:
        named = (subject.tokenizer.to_id(f"<extra_id_{number}>") for number in range(count))
        known = [token for token in named if token is not None]
    if len(known) < count:
        raise DataError(
            f"the text has {count - 1} {MASK}, which need {count} sentinels, but the model has {len(known)}; fill "
            "fewer at a time"
        )
    return known


def _source_row(subject: TranslationModel, text: str, sentinels: Sequence[int]) -> list[int]:
    """The tokens of a text with a sentinel for each mask."""
    tokenizer = subject.source_tokenizer
    if sentinels[0] < tokenizer.vocab_size:  # a token of the tokeniser, which handles the spaces around it
        for sentinel in sentinels[:-1]:
            text = text.replace(MASK, tokenizer.piece(sentinel), 1)
        row = list(tokenizer.encode(text))
    else:
        parts = split_at_masks(text, joins_spaces=tokenizer.joins_spaces)
        row = tokenizer.encode_block(parts[0]).tolist()
        for sentinel, part in zip(sentinels, parts[1:], strict=False):
            row += [sentinel, *tokenizer.encode_block(part).tolist()]
    if subject.model.window is not None and len(row) >= subject.model.window:
        raise DataError(
            f"the text has {len(row)} tokens, but the model reads at most {subject.model.window - 1}; shorten it "
            f"around the {MASK}"
        )
    return row


def _limit(subject: TranslationModel, read: int) -> int:
    """Most tokens of the next gap, its end included, after `read` tokens."""
    return MAX_GAP if subject.model.window is None else max(1, min(MAX_GAP, subject.model.window - read))


def _without_end(hypothesis: Hypothesis, end: int) -> list[int]:
    return hypothesis.tokens[:-1] if hypothesis.tokens[-1] == end else hypothesis.tokens


def _guess(subject: TranslationModel, tokens: list[int], log_prob: float) -> Guess:
    tokenizer = subject.tokenizer
    known = [token for token in tokens if token < tokenizer.vocab_size]
    return Guess(tokenizer.decode(known).strip(), " ".join(map(tokenizer.piece, known)), math.exp(log_prob))
