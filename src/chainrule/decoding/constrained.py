"""Beam search whose hypotheses contain given phrases: grid beam search (Hokamp & Liu, 2017) over any stepper.

Hypotheses are kept in banks, one for each amount of progress: the number of phrases that were written, and the number
of tokens of a phrase that the text ends with. They compete within their bank only, so a hypothesis that writes an
improbable phrase is not crowded out by those that have yet to. A bank keeps as many hypotheses as the beam is wide, or
half as many in the middle of a phrase. Hypotheses end in the last bank only, where all phrases are written, by the
rules of `beam.py`; without phrases that is the only bank.

Every result contains its phrases: a continuation is dropped when too few tokens would be left to write the rest, and a
token that continues or begins a phrase is always possible, whatever the model or a control says of it. A beam wide
enough for every sequence finds the best of all sequences that contain the phrases; near the length limit, phrases are
counted as if they did not overlap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.beam import LENGTH_PENALTY, Hypothesis, check_beam
from chainrule.decoding.controls import FLOOR
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Phrase:
    """Tokens that must occur in the text, in one of some spellings, `count` times or more."""

    spellings: tuple[tuple[int, ...], ...]
    count: int = 1
    exact: bool = False  # not more often, unless another phrase contains it

    @property
    def shortest(self) -> int:
        return min(map(len, self.spellings))


@dataclass(frozen=True)
class Progress:
    """How much of the phrases a text contains."""

    missing: tuple[int, ...]  # how often each phrase is yet to be written
    matched: int  # tokens of a missing phrase that the text ends with, at most
    needed: int  # tokens that complete all phrases, at most

    @property
    def bank(self) -> tuple[int, int]:
        """The amount of progress; the bank (0, 0) has all phrases."""
        return sum(self.missing), self.matched


class Phrases:
    """The phrases of one text."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = list(phrases)
        self.tokens = {token for phrase in phrases for spelling in phrase.spellings for token in spelling}

    def begin(self, given: list[int]) -> Progress:
        """The progress of a given text."""
        progress = self._progress(tuple(phrase.count for phrase in self.phrases), [])
        for end in range(1, len(given) + 1):
            progress = self.follow(progress, given[:end])
        return progress

    def follow(self, before: Progress, text: list[int]) -> Progress:
        """The progress of a text, given that without its last token."""
        missing = tuple(
            max(0, count - any(_ends_with(text, spelling) for spelling in phrase.spellings))
            for phrase, count in zip(self.phrases, before.missing, strict=True)
        )
        return self._progress(missing, text)

    def pause(self, before: Progress) -> Progress:
        """The progress after a token that is in no phrase."""
        return self._progress(before.missing, []) if before.matched else before

    def _progress(self, missing: tuple[int, ...], text: list[int]) -> Progress:
        total = sum(count * phrase.shortest for phrase, count in zip(self.phrases, missing, strict=True))
        matched, needed = 0, total
        for phrase, count in zip(self.phrases, missing, strict=True):
            for spelling in phrase.spellings if count else ():
                length = _matched(text, spelling)
                matched = max(matched, length)
                if length:
                    needed = min(needed, total - phrase.shortest + len(spelling) - length)
        return Progress(missing, matched, needed)

    def surplus(self, before: Progress, text: list[int]) -> bool:
        """Whether the last token writes a phrase once too often."""
        return any(
            phrase.exact and not count and any(_ends_with(text, spelling) for spelling in phrase.spellings)
            for phrase, count in zip(self.phrases, before.missing, strict=True)
        )


def _ends_with(text: list[int], tokens: tuple[int, ...]) -> bool:
    return len(text) >= len(tokens) and tuple(text[-len(tokens) :]) == tokens


def _matched(text: list[int], spelling: tuple[int, ...]) -> int:
    """How many tokens at the end of the text begin the spelling, which is longer."""
    for length in range(min(len(text), len(spelling) - 1), 0, -1):
        if tuple(text[-length:]) == spelling[:length]:
            return length
    return 0


@dataclass(frozen=True)
class _Row:
    """An open hypothesis."""

    tokens: list[int]
    log_prob: float
    progress: Progress
    source: int = 0  # its row of the previous step


class _Grid:
    """The open and finished hypotheses of one prompt."""

    def __init__(
        self, phrases: Phrases, given: list[int], eos: int | None, beams: int, limit: int, penalty: float
    ) -> None:
        self.phrases, self.given, self.eos, self.beams = phrases, given, eos, beams
        self.limit, self.penalty = limit, float(penalty)
        self.rows = [_Row([], 0.0, phrases.begin(given))]
        self.finished: list[Hypothesis] = []
        if (needed := self.rows[0].progress.needed) > limit:
            raise ConfigError(
                f"the forced phrases have {needed} tokens, but a text may have {limit}; raise max_new_tokens, or leave "
                "out a phrase"
            )

    def advance(self, scores_RV: Array) -> bool:
        """Take one step given the scores of the rows -> whether the search continues."""
        length = len(self.rows[0].tokens) + 1
        banks: defaultdict[tuple[int, int], list[_Row]] = defaultdict(list)
        for source, (row, scores_V) in enumerate(zip(self.rows, scores_RV, strict=True)):
            for candidate in self._continuations(source, row, scores_V):
                banks[candidate.progress.bank].append(candidate)
        last = _best(banks.pop((0, 0), []), 2 * self.beams if self.beams > 1 else 1)
        for row in last[: self.beams]:
            if self._ended(row):
                self.finished.append(Hypothesis(row.tokens, row.log_prob, row.log_prob / length**self.penalty))
        still_open = [row for row in last if not self._ended(row)][: self.beams]
        settled = self._settled(still_open, length)
        for (_, matched), rows in banks.items():
            still_open += _best(rows, -(-self.beams // 2) if matched else self.beams)
        self.rows = still_open
        return bool(still_open) and not settled and length < self.limit

    def _ended(self, row: _Row) -> bool:
        return row.tokens[-1] == self.eos or len(row.tokens) == self.limit

    def _settled(self, still_open: list[_Row], length: int) -> bool:
        """Whether a full beam has finished, and no open hypothesis with all phrases is better than its worst."""
        scores = sorted((one.score for one in self.finished), reverse=True)
        if len(scores) < self.beams:
            return False
        return not still_open or still_open[0].log_prob / length**self.penalty <= scores[self.beams - 1]

    def _continuations(self, source: int, row: _Row, scores_V: Array) -> list[_Row]:
        """The continuations of a row that may be among the best of their bank."""
        count = min(len(scores_V), 2 * self.beams + len(self.phrases.tokens) + 1)
        likely = np.argpartition(-scores_V, count - 1)[:count].tolist() if count < len(scores_V) else range(count)
        left, found = self.limit - len(row.tokens) - 1, []
        for token in self.phrases.tokens.union(likely):
            score, tokens = float(scores_V[token]), [*row.tokens, token]
            if token in self.phrases.tokens:
                text = [*self.given, *tokens]
                progress = self.phrases.follow(row.progress, text)
                forward = progress.needed < row.progress.needed
                if not forward and self.phrases.surplus(row.progress, text):
                    continue
                score = max(score, FLOOR) if forward else score
            else:
                progress = self.phrases.pause(row.progress)
            ends_early = token == self.eos and sum(progress.missing) > 0
            if score > -math.inf and progress.needed <= left and not ends_early:
                found.append(_Row(tokens, row.log_prob + score, progress, source))
        return found


def _best(rows: list[_Row], count: int) -> list[_Row]:
    """The most probable rows; among equals the one with the smallest row and token, as in greedy search."""
    return sorted(rows, key=lambda row: (-row.log_prob, row.source, row.tokens[-1]))[:count]


@without_gradients
def constrained_beam_search(
    stepper: Stepper,
    state: State,
    prompt_BT: Tensor,
    phrases: Sequence[Sequence[Phrase]],
    *,
    eos: int | None,
    beams: int,
    max_new_tokens: Sequence[int],
    length_penalty: float = LENGTH_PENALTY,
    num_return_sequences: int = 1,
) -> list[list[Hypothesis]]:
    """`beam_search` of B prompts, each with phrases that its hypotheses contain. There may be fewer than requested.

    A prompt may contain phrases. A spelling that begins with `eos` is one at the beginning of the text.
    """
    check_beam(beams, length_penalty, num_return_sequences)
    grids = [
        _Grid(Phrases(some), given, eos, beams, limit, length_penalty)
        for some, given, limit in zip(phrases, prompt_BT.tolist(), max_new_tokens, strict=True)
    ]
    scores_RV, state = stepper.prefill(state, prompt_BT)
    active = grids
    while active:
        scores, begin, remaining, chosen = scores_RV.float().cpu().numpy(), 0, [], list[int]()
        for grid in active:
            end = begin + len(grid.rows)
            if grid.advance(scores[begin:end]):
                remaining.append(grid)
                chosen += [begin + row.source for row in grid.rows]
            begin = end
        active = remaining
        if active:
            state = stepper.select(state, torch.tensor(chosen, device=prompt_BT.device))
            token_R = torch.tensor([row.tokens[-1] for grid in active for row in grid.rows], device=prompt_BT.device)
            scores_RV, state = stepper.step(state, token_R)
    return [sorted(grid.finished, key=lambda one: -one.score)[:num_return_sequences] for grid in grids]
