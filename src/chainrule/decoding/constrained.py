"""Beam search whose hypotheses contain given phrases: grid beam search (Hokamp & Liu, 2017) over any stepper.

Hypotheses are kept in banks, one for each amount of progress: the number of phrases that were written, and the number
of tokens of a phrase that the text ends with. They compete within their bank only, so a hypothesis that writes an
improbable phrase is not crowded out by those that have yet to. A bank keeps as many hypotheses as the beam is wide, and
half as many for each further token of a phrase. Hypotheses end in the last bank only, where all phrases are written, by
the rules of `beam.py`; without phrases that is the only bank.

Every result contains its phrases (`phrases.py`): a continuation is dropped when too few tokens would be left to write
the rest, and a token that continues, begins or closes a phrase is always possible, whatever the model or a control says
of it. A beam wide enough for every sequence finds the best of all sequences that contain the phrases; near the length
limit, phrases are counted as if they did not overlap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.beam import LENGTH_PENALTY, Hypothesis, check_beam
from chainrule.decoding.controls import FLOOR
from chainrule.decoding.phrases import Phrase, Phrases, Progress, Transition
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor


class _Row:
    """An open hypothesis: its last token, and the hypothesis before it."""

    __slots__ = ("before", "log_prob", "progress", "source", "token")

    def __init__(self, log_prob: float, progress: Progress, source: int, token: int, before: _Row | None) -> None:
        self.log_prob, self.progress, self.source, self.token, self.before = log_prob, progress, source, token, before

    @property
    def tokens(self) -> list[int]:
        """All its tokens."""
        tokens, row = [], self
        while row.before is not None:
            tokens.append(row.token)
            row = row.before
        return tokens[::-1]


_Candidate = tuple[float, int, int, Progress]
"""A continuation: -log p, its row, token and progress. Among equals the first row and token come first, as in greedy
search. It is a plain tuple because there are many of them."""


_Banks = defaultdict[tuple[int, int], list[_Candidate]]


class _Likely(NamedTuple):
    """The scores of the rows of a step: of the likeliest tokens, best first, and of all."""

    values: list[list[float]]
    tokens: list[list[int]]
    all_RV: Array


class _Grid:
    """The open and finished hypotheses of one prompt."""

    def __init__(
        self, phrases: Phrases, given: list[int], eos: int | None, beams: int, limit: int, penalty: float
    ) -> None:
        self.phrases, self.eos, self.beams = phrases, eos, beams
        self.limit, self.penalty, self.length = limit, float(penalty), 0
        self.kept = 2 * beams if beams > 1 else 1  # candidates of one bank that matter, at most
        self.rows = [_Row(0.0, phrases.begin(given), 0, 0, None)]
        self.finished: list[Hypothesis] = []
        if (needed := self.rows[0].progress.needed) > limit:
            raise ConfigError(
                f"the forced phrases have {needed} tokens, but a text may have {limit}; raise max_new_tokens, or leave "
                "out a phrase"
            )

    def advance(self, likely: _Likely) -> bool:
        """Take one step given the scores of the rows -> whether the search continues."""
        self.length += 1
        banks: _Banks = defaultdict(list)
        for source, row in enumerate(self.rows):
            if row.progress.closing is None:
                self._free(banks[row.progress.pause.bank], source, row, likely)
            else:  # a phrase was written, and what follows decides whether it counts
                self._closing(banks, source, row, likely.all_RV[source])
            for token, way in row.progress.moves:
                self._add(banks, source, row, token, float(likely.all_RV[source, token]), way)
        last = sorted(banks.pop((0, 0), []))[: self.kept]
        for one in last[: self.beams]:
            if self._ended(one):
                self._finish(one)
        still_open = [one for one in last if not self._ended(one)][: self.beams]
        settled = self._settled(still_open)
        for (_, matched), some in banks.items():
            still_open += sorted(some)[: -(-self.beams // (1 << matched))]
        self.rows = [self._row(one) for one in still_open]
        return bool(still_open) and not settled and self.length < self.limit

    def _row(self, one: _Candidate) -> _Row:
        cost, source, token, progress = one
        return _Row(-cost, progress, source, token, self.rows[source])

    def _finish(self, one: _Candidate) -> None:
        self.finished.append(Hypothesis(self._row(one).tokens, -one[0], -one[0] / self.length**self.penalty))

    def _ended(self, one: _Candidate) -> bool:
        return one[2] == self.eos or self.length == self.limit

    def _settled(self, still_open: list[_Candidate]) -> bool:
        """Whether a full beam has finished, and no open hypothesis with all phrases is better than its worst."""
        scores = sorted((one.score for one in self.finished), reverse=True)
        if len(scores) < self.beams:
            return False
        return not still_open or -still_open[0][0] / self.length**self.penalty <= scores[self.beams - 1]

    def _possible(self, progress: Progress, token: int) -> bool:
        """Whether the phrases fit in the tokens that are left, and the text does not end before them."""
        return progress.needed <= self.limit - self.length and not (token == self.eos and progress.missing)

    def _free(self, bank: list[_Candidate], source: int, row: _Row, likely: _Likely) -> None:
        """Add the best continuations of a row that make no progress: all are in one bank."""
        pause, kept = row.progress.pause, 0
        for value, token in zip(likely.values[source], likely.tokens[source], strict=True):
            if kept == self.kept or value == -math.inf:
                return
            after, surplus = row.progress.follow(token) if token in self.phrases.tokens else (pause, False)
            if after.bank == pause.bank and not surplus and self._possible(after, token):
                bank.append((-row.log_prob - value, source, token, after))
                kept += 1

    def _closing(self, banks: _Banks, source: int, row: _Row, scores_V: Array) -> None:
        """The same where some tokens close a phrase: the best of those, and the best of the others."""
        ways = row.progress.close, Transition(row.progress.pause, False)
        for mask_V, way in zip(self.phrases.masks(len(scores_V)), ways, strict=True):
            token_N = np.flatnonzero(mask_V)
            best_N = token_N[np.argsort(-scores_V[token_N], kind="stable")[: self.kept]]
            for token, value in zip(best_N.tolist(), scores_V[best_N].tolist(), strict=True):
                self._add(banks, source, row, token, value, way)
        for token in self.phrases.ordered:
            way = row.progress.follow(token)
            if way.progress.bank == row.progress.pause.bank:  # the others are moves
                self._add(banks, source, row, token, float(scores_V[token]), way)

    def _add(self, banks: _Banks, source: int, row: _Row, token: int, value: float, way: Transition) -> None:
        """Add the continuation of a row by a token if it is possible: always if it makes progress that fits."""
        after = way.progress
        forward = after.needed < row.progress.needed
        score = max(value, FLOOR) if forward else value
        if score > -math.inf and (forward or not way.surplus) and self._possible(after, token):
            banks[after.bank].append((-row.log_prob - score, source, token, after))


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
        remaining, chosen = [], list[int]()
        for grid, begin, likely in _scores_of(active, scores_RV):
            if grid.advance(likely):
                remaining.append(grid)
                chosen += [begin + row.source for row in grid.rows]
        active = remaining
        if active:
            state = stepper.select(state, torch.tensor(chosen, device=prompt_BT.device))
            token_R = torch.tensor([row.token for grid in active for row in grid.rows], device=prompt_BT.device)
            scores_RV, state = stepper.step(state, token_R)
    return [sorted(grid.finished, key=lambda one: -one.score)[:num_return_sequences] for grid in grids]


def _scores_of(grids: list[_Grid], scores_RV: Tensor) -> Iterator[tuple[_Grid, int, _Likely]]:
    """Each grid with its first row and its scores. The likeliest tokens of all rows are found at once."""
    scores_RV = scores_RV.float()
    count = max(grid.kept + len(grid.phrases.tokens) + 1 for grid in grids)
    best = scores_RV.topk(min(count, scores_RV.shape[1]), 1)
    values, tokens, all_RV, begin = best.values.tolist(), best.indices.tolist(), scores_RV.cpu().numpy(), 0
    for grid in grids:
        end = begin + len(grid.rows)
        yield grid, begin, _Likely(values[begin:end], tokens[begin:end], all_RV[begin:end])
        begin = end
