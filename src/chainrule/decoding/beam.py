"""Beam search over any stepper, for many starts at once.

A beam has K places. At each step the best continuations of its open hypotheses, by log-probability, take the open
places; one that ends with `eos` keeps its place, so the beam narrows as hypotheses finish (Sutskever et al., 2014), and
the rows that the model has to step become fewer. Width 1 is greedy search; a beam wide enough for every sequence is
exhaustive search. Hypotheses compare by

    score = log p / length ^ length_penalty        (length counts the new tokens, eos included)

and a start is left as soon as none of its open hypotheses can reach the score of the n-th best finished one any more.
What is cut by the limit on length competes like what has ended.

Legend: B starts, A starts still searched, W open hypotheses of each, R = A·W rows of the model, V vocabulary,
M candidates taken of each, N hypotheses wanted of each, T time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.decoding.prompt import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper, prefill


@dataclass(frozen=True)
class Hypothesis:
    """One way to go on: the new tokens (with `eos`, if it ended), their log-probability, and what it is ranked by."""

    tokens: list[int]
    log_prob: float
    score: float


class Candidates(NamedTuple):
    """The best continuations of one step. Those that ended have a score; all others -inf."""

    start_A: Tensor  # which of the B starts
    row_AM: Tensor  # the row that was continued
    token_AM: Tensor
    log_prob_AM: Tensor  # -inf where there was no place for it
    score_AM: Tensor


class Links(NamedTuple):
    """How the rows of one step hang on those of the step before."""

    row_R: Tensor
    token_R: Tensor


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    state: State,
    prompt_BT: Tensor,
    *,
    eos: int | None,
    beams: int,
    max_new_tokens: int,
    length_penalty: float = 0.0,
    num_return_sequences: int = 1,
) -> list[list[Hypothesis]]:
    """Search on from B prefixes -> for each, at most num_return_sequences hypotheses, the best first.

    `prompt_BT` (T ≥ 1; its first token is usually `eos`) is read after `state`, which is `stepper.start(B)` or knows an
    encoded source. `eos` None: nothing ends before the limit.
    """
    check_limit(max_new_tokens)
    _check(beams, length_penalty, num_return_sequences)
    log_probs_RV, state = prefill(stepper, state, prompt_BT)
    beam = _Beam(log_probs_RV, eos, beams, max_new_tokens, length_penalty, num_return_sequences)
    while True:
        rows_R = beam.advance(log_probs_RV)
        if rows_R is None:
            return beam.hypotheses()
        if not (len(rows_R) == len(log_probs_RV) and torch.equal(rows_R, beam.identity(len(rows_R)))):
            state = stepper.select(state, rows_R)
        log_probs_RV, state = stepper.step(state, beam.links[-1].token_R)


def _check(beams: int, length_penalty: float, wanted: int) -> None:
    if beams < 1:
        raise ConfigError(f"the beam has {beams} places, but at least 1 is needed.")
    if not -10 <= length_penalty <= 10:  # beyond that, length ^ penalty leaves the range of numbers
        raise ConfigError(f"length_penalty is {length_penalty}, but it must be from -10 to 10; 0 means none.")
    if not 1 <= wanted <= beams:
        raise ConfigError(
            f"num_return_sequences is {wanted}, but a beam of {beams} can give 1 to {beams}; widen the beam for more."
        )


class _Beam:
    """The open and finished hypotheses of all starts."""

    def __init__(
        self, log_probs_BV: Tensor, eos: int | None, places: int, limit: int, penalty: float, wanted: int
    ) -> None:
        B, device = len(log_probs_BV), log_probs_BV.device
        self.eos = -1 if eos is None else eos
        self.places, self.limit, self.penalty, self.wanted = places, limit, penalty, wanted
        self.links: list[Links] = []  # one a step: the rows that went on
        self.taken: list[Candidates] = []  # one a step: among them, what ended
        self.count = B
        self.start_A = torch.arange(B, device=device)
        self.open_A = torch.full((B,), places, device=device)  # places not held by a finished hypothesis
        self.log_prob_AW = log_probs_BV.new_zeros(B, 1)
        self.best_AN = log_probs_BV.new_full((B, wanted), -math.inf)  # scores of the best finished ones
        self._identity = torch.arange(B * places, device=device)

    def identity(self, rows: int) -> Tensor:
        """0, 1, …, rows - 1."""
        return self._identity[:rows]

    def advance(self, log_probs_RV: Tensor) -> Tensor | None:
        """Take one step given log p(. | prefix) of the rows -> the rows to go on from, or None when all is done."""
        length = len(self.links) + 1
        new = self._candidates(log_probs_RV, length)
        ended_AM = new.score_AM > -math.inf
        self.taken.append(new)
        self.open_A = self.open_A - ended_AM.sum(1)
        self.best_AN = torch.cat([self.best_AN, new.score_AM], 1).topk(self.wanted, 1).values
        if length == self.limit:
            return None
        return self._go_on(new, new.log_prob_AM.masked_fill(ended_AM, -math.inf), length)

    def _candidates(self, log_probs_RV: Tensor, length: int) -> Candidates:
        """The best continuations of each start, no more than it has open places."""
        A, W = self.log_prob_AW.shape
        V = log_probs_RV.shape[1]
        total_AN = (self.log_prob_AW[:, :, None] + log_probs_RV.view(A, W, V)).view(A, W * V)
        # `max` takes the first of equals, as greedy search does; `topk` any.
        log_prob_AM, index_AM = total_AN.max(1, True) if self.places == 1 else total_AN.topk(min(self.places, W * V), 1)
        rank_M = self.identity(log_prob_AM.shape[1])
        log_prob_AM = log_prob_AM.masked_fill(rank_M >= self.open_A[:, None], -math.inf)
        token_AM = index_AM % V
        row_AM = index_AM // V + self.identity(A)[:, None] * W
        score_AM = log_prob_AM / length**self.penalty
        if length < self.limit:
            score_AM = score_AM.masked_fill(token_AM != self.eos, -math.inf)
        return Candidates(self.start_A, row_AM, token_AM, log_prob_AM, score_AM)

    def _go_on(self, new: Candidates, log_prob_AM: Tensor, length: int) -> Tensor | None:
        """Keep the open hypotheses of the starts that are not settled, in as few rows as hold them."""
        # A hypothesis only loses log-probability on its way, so this is the best score it can end with.
        reach = self.limit if self.penalty > 0 else length + 1
        hopeful_A = log_prob_AM.amax(1) / reach**self.penalty > self.best_AN[:, -1]
        possible_A = (log_prob_AM > -math.inf).sum(1)
        open_A: list[int] = (possible_A * hopeful_A).tolist()  # the one wait for the device in a step
        active = [index for index, places in enumerate(open_A) if places]
        if not active:
            return None
        log_prob_AW, column_AW = log_prob_AM.topk(max(open_A), 1)
        row_AW, token_AW = new.row_AM.gather(1, column_AW), new.token_AM.gather(1, column_AW)
        if len(active) < len(open_A):
            keep_A = torch.tensor(active, device=log_prob_AW.device)
            log_prob_AW, row_AW, token_AW = log_prob_AW[keep_A], row_AW[keep_A], token_AW[keep_A]
            self.start_A, self.open_A, self.best_AN = self.start_A[keep_A], self.open_A[keep_A], self.best_AN[keep_A]
        self.log_prob_AW = log_prob_AW
        self.links.append(Links(row_AW.flatten(), token_AW.flatten()))
        return self.links[-1].row_R

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The best finished hypotheses of each start."""
        links = [(link.row_R.tolist(), link.token_R.tolist()) for link in self.links]
        found: list[list[tuple[float, float, int, int, int]]] = [[] for _ in range(self.count)]
        for step, taken in enumerate(self.taken):
            starts = taken.start_A.tolist()
            fields = (taken.score_AM, taken.log_prob_AM, taken.row_AM, taken.token_AM)
            for start, *columns in zip(starts, *(field.tolist() for field in fields), strict=True):
                ended = (entry for entry in zip(*columns, strict=True) if entry[0] > -math.inf)
                found[start].extend((score, log_prob, step, row, token) for score, log_prob, row, token in ended)
        best = [sorted(entries, key=lambda entry: -entry[0])[: self.wanted] for entries in found]
        return [[_trace(links, *entry) for entry in entries] for entries in best]


def _trace(
    links: list[tuple[list[int], list[int]]], score: float, log_prob: float, step: int, row: int, token: int
) -> Hypothesis:
    """Follow the links from the last token of a hypothesis back to its first."""
    tokens = [token]
    for rows, chosen in reversed(links[:step]):
        tokens.append(chosen[row])
        row = rows[row]
    return Hypothesis(tokens[::-1], log_prob, score)
