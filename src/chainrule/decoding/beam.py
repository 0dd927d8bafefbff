"""Beam search over any stepper, for many starts at once.

At each step, of all one-token continuations of a start's open hypotheses, the best 2K by log-probability are taken. One
that ends with `eos` finishes if it is among the first K of these; the best K that do not end go on. What has finished
takes no place from what is open, and since no more than K of the 2K can end, K are always left to go on. Hypotheses
compare by

    score = log p / length ^ length_penalty        (length counts the new tokens, eos included)

A start is left when K of its hypotheses have finished and the best open one, as long as it is now, scores no better
than the worst of the best K (what transformers does by default), or earlier, when none of the open ones can reach the
score of the n-th best finished one any more, which changes no result. At the limit on length the first K candidates of
any kind finish. Width 1 is greedy search; a beam wide enough for every sequence is exhaustive search.

Legend: B starts, A starts still searched, K width, W open hypotheses of each, R = A·W rows of the model, V vocabulary,
M candidates taken of each, J blocks of the vocabulary, S words of a block, N entries of any kind, T time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.decoding.limits import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

BLOCKS = 256
"""A large vocabulary is dealt into so many blocks, about the quickest from 2,000 words to 50,000."""


@dataclass(frozen=True)
class Hypothesis:
    """One way to go on: the new tokens (with `eos`, if it ended), their log-probability, and what it is ranked by."""

    tokens: list[int]
    log_prob: float
    score: float


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    state: State,
    prompt_BT: Tensor,
    *,
    eos: int | None,
    beams: int,
    max_new_tokens: int | Sequence[int] | Tensor,
    length_penalty: float = 0.0,
    num_return_sequences: int = 1,
) -> list[list[Hypothesis]]:
    """Search on from B prefixes -> for each, at most num_return_sequences hypotheses, the best first.

    `prompt_BT` (T ≥ 1; its first token is usually `eos`) is read after `state`, which is `stepper.start(B)` or knows an
    encoded source. `eos` None: nothing ends before the limit. `max_new_tokens` is one limit for all, or B of them.
    """
    limits = _limits(max_new_tokens, len(prompt_BT))
    _check(beams, length_penalty, num_return_sequences)
    if not limits:
        return []
    log_probs_RV, state = stepper.prefill(state, prompt_BT)
    beam = _Beam(log_probs_RV, eos, beams, limits, length_penalty, num_return_sequences)
    while True:
        link = beam.advance(log_probs_RV)
        if link is None:
            return beam.hypotheses()
        if not (len(link.row_R) == len(log_probs_RV) and torch.equal(link.row_R, beam.identity(len(link.row_R)))):
            state = stepper.select(state, link.row_R)
        log_probs_RV, state = stepper.step(state, link.token_R)


def _limits(max_new_tokens: int | Sequence[int] | Tensor, starts: int) -> list[int]:
    """One limit for each start."""
    given = torch.as_tensor(max_new_tokens).tolist()
    limits: list[int] = given if isinstance(given, list) else [given] * starts
    if len(limits) != starts:
        raise ConfigError(
            f"max_new_tokens has {len(limits)} limits, but there are {starts} starts; give one each, or one for all."
        )
    for limit in limits:
        check_limit(limit)
    return limits


def _check(beams: int, length_penalty: float, wanted: int) -> None:
    if beams < 1:
        raise ConfigError(f"the beam has {beams} places, but at least 1 is needed.")
    if not -10 <= length_penalty <= 10:  # beyond that, length ^ penalty leaves the range of numbers
        raise ConfigError(f"length_penalty is {length_penalty}, but it must be from -10 to 10; 0 means none.")
    if not 1 <= wanted <= beams:
        raise ConfigError(
            f"num_return_sequences is {wanted}, but a beam of {beams} can give 1 to {beams}; widen the beam for more."
        )


class Candidates(NamedTuple):
    """The best continuations of one step, of each start the best first."""

    log_prob_AM: Tensor  # -inf where there are fewer
    place_AM: Tensor  # row · V + word


class Finished(NamedTuple):
    """The first K candidates of one step. Those that ended have a score; all others -inf."""

    start_A: Tensor  # which of the B starts
    log_prob_AK: Tensor
    place_AK: Tensor
    score_AK: Tensor


class Link(NamedTuple):
    """How the rows of one step hang on those of the step before."""

    row_R: Tensor
    token_R: Tensor


def best_continuations(log_prob_AW: Tensor, log_probs_RV: Tensor, count: int) -> Candidates:
    """The best of the W·V continuations of each start, given log p of the prefixes and of each next word.

    `count` are wanted; there may be fewer. Of equals 1 is the first, as in greedy search; more are any.
    """
    (A, W), V = log_prob_AW.shape, log_probs_RV.shape[1]
    log_probs_RV = log_probs_RV.contiguous()
    if 1 < count <= BLOCKS <= V // 8:
        total_AN, place_AN = _shortlist(log_prob_AW, log_probs_RV, count)
        best_AM, index_AM = total_AN.topk(count, 1)
        return Candidates(best_AM, place_AN.gather(1, index_AM))
    total_AN = (log_prob_AW[:, :, None] + log_probs_RV.view(A, W, V)).view(A, W * V)
    best_AM, index_AM = total_AN.max(1, True) if count == 1 else total_AN.topk(min(count, W * V), 1)
    return Candidates(best_AM, index_AM + torch.arange(0, A * W * V, W * V, device=index_AM.device)[:, None])


def _shortlist(log_prob_AW: Tensor, log_probs_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Some continuations of each start, the best `count` among them -> their log p AN, and their places row · V + word.

    Word v belongs to block v mod J. The best words lie in the blocks whose maxima are best, and the maxima are found
    at the speed of memory, which an order is not.
    """
    (A, W), (R, V), J = log_prob_AW.shape, log_probs_RV.shape, BLOCKS
    whole, rest = divmod(V, J)
    most_RJ = log_probs_RV[:, : whole * J].view(R, whole, J).amax(1)
    if rest:
        most_RJ[:, :rest] = torch.maximum(most_RJ[:, :rest], log_probs_RV[:, -rest:])
    block_AM = (log_prob_AW[:, :, None] + most_RJ.view(A, W, J)).view(A, W * J).topk(count, 1, sorted=False).indices
    open_AM, first_AM = block_AM // J, block_AM % J  # which of the W, and the first word of the block
    row_AM = open_AM + torch.arange(0, R, W, device=block_AM.device)[:, None]
    place_AMS = (row_AM * V + first_AM)[:, :, None] + torch.arange(0, V, J, device=block_AM.device)
    if rest:
        place_AMS[:, :, -1].clamp_(max=R * V - 1)
    log_prob_AMS = log_probs_RV.view(-1).index_select(0, place_AMS.view(-1)).view(place_AMS.shape)
    if rest:  # the other blocks are a word shorter, and what was read there belongs to the next row
        log_prob_AMS[:, :, -1].masked_fill_(first_AM >= rest, -math.inf)
    log_prob_AMS = log_prob_AMS + log_prob_AW.gather(1, open_AM)[:, :, None]
    return log_prob_AMS.view(A, -1), place_AMS.view(A, -1)


class _Beam:
    """The open and finished hypotheses of all starts."""

    def __init__(
        self, log_probs_BV: Tensor, eos: int | None, places: int, limits: list[int], penalty: float, wanted: int
    ) -> None:
        B, device = len(limits), log_probs_BV.device
        dtype = torch.promote_types(log_probs_BV.dtype, torch.float32)  # sums want more digits than a step may have
        self.eos = -1 if eos is None else eos
        self.places, self.penalty, self.wanted = places, float(penalty), wanted
        self.starts, self.V, self.shortest = B, log_probs_BV.shape[1], min(limits)
        self.links: list[Link] = []  # one a step: the rows that went on
        self.finished: list[Finished] = []  # one a step
        self.start_A = torch.arange(B, device=device)
        self.limit_A = torch.tensor(limits, device=device)
        self.reach_A = torch.tensor([limit**self.penalty for limit in limits], dtype=dtype, device=device)
        self.log_prob_AW = torch.zeros(B, 1, dtype=dtype, device=device)
        self.best_AK = self.log_prob_AW.new_full((B, places), -math.inf)  # scores of the best finished ones
        self._identity = torch.arange(B * places, device=device)

    def identity(self, rows: int) -> Tensor:
        """0, 1, …, rows - 1."""
        return self._identity[:rows]

    def advance(self, log_probs_RV: Tensor) -> Link | None:
        """Take one step given log p(. | prefix) of the rows -> what to go on from, or None when all is done."""
        length = len(self.links) + 1
        # Of a beam of 1 either the best continuation ends and with it the search, or it goes on.
        count = 2 * self.places if self.places > 1 else 1
        new = best_continuations(self.log_prob_AW, log_probs_RV, count)
        ended_AM = new.place_AM % self.V == self.eos
        if length >= self.shortest:
            ended_AM |= (self.limit_A == length)[:, None]
        self._finish(new, ended_AM, length)
        return self._go_on(new, ended_AM, length)

    def _finish(self, new: Candidates, ended_AM: Tensor, length: int) -> None:
        """Keep what ended among the first K candidates."""
        log_prob_AK, place_AK, ended_AK = (field_AM[:, : self.places] for field_AM in (*new, ended_AM))
        score_AK = (log_prob_AK / length**self.penalty).masked_fill(~ended_AK, -math.inf)
        self.finished.append(Finished(self.start_A, log_prob_AK, place_AK, score_AK))
        self.best_AK = torch.cat([self.best_AK, score_AK], 1).topk(self.places, 1).values

    def _go_on(self, new: Candidates, ended_AM: Tensor, length: int) -> Link | None:
        """Keep the open hypotheses of the starts that are not settled, in as few rows as hold them."""
        open_AM = new.log_prob_AM.masked_fill(ended_AM, -math.inf)
        log_prob_AW, column_AW = open_AM.topk(min(self.places, open_AM.shape[1]), 1)
        # A hypothesis only loses log-probability on its way, so this is the best score it can end with.
        reach_A = log_prob_AW[:, 0] / (self.reach_A if self.penalty > 0 else (length + 1) ** self.penalty)
        likely_A = log_prob_AW[:, 0] / length**self.penalty > self.best_AK[:, -1]  # so while fewer than K have finished
        hopeful_A = (reach_A > self.best_AK[:, self.wanted - 1]) & likely_A
        possible_A = (log_prob_AW > -math.inf).sum(1)
        open_A: list[int] = (possible_A * hopeful_A).tolist()  # the one wait for the device in a step
        active = [index for index, places in enumerate(open_A) if places]
        if not active:
            return None
        W = max(open_A)
        log_prob_AW, place_AW = log_prob_AW[:, :W], new.place_AM.gather(1, column_AW[:, :W])
        if len(active) < len(open_A):
            keep_A = torch.tensor(active, device=log_prob_AW.device)
            log_prob_AW, place_AW = log_prob_AW[keep_A], place_AW[keep_A]
            self.start_A, self.limit_A, self.reach_A, self.best_AK = (
                field_A[keep_A] for field_A in (self.start_A, self.limit_A, self.reach_A, self.best_AK)
            )
        self.log_prob_AW = log_prob_AW
        place_R = place_AW.flatten()
        self.links.append(Link(place_R // self.V, place_R % self.V))
        return self.links[-1]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The best finished hypotheses of each start."""
        links = [(link.row_R.tolist(), link.token_R.tolist()) for link in self.links]
        found: list[list[Hypothesis]] = [[] for _ in range(self.starts)]
        for score, start, log_prob, place, step in self._ranked():
            if len(found[start]) < self.wanted:
                found[start].append(Hypothesis(_trace(links[:step], *divmod(place, self.V)), log_prob, score))
        return found

    def _ranked(self) -> list[tuple[float, int, float, int, int]]:
        """Score, start, log p, place and step of all that finished, the best first."""
        score_N = torch.cat([done.score_AK.flatten() for done in self.finished])
        start_N = torch.cat([done.start_A.repeat_interleave(done.score_AK.shape[1]) for done in self.finished])
        log_prob_N = torch.cat([done.log_prob_AK.flatten() for done in self.finished])
        place_N = torch.cat([done.place_AK.flatten() for done in self.finished])
        sizes = torch.tensor([done.score_AK.numel() for done in self.finished], device=score_N.device)
        step_N = torch.arange(len(sizes), device=score_N.device).repeat_interleave(sizes)
        ended_N = score_N > -math.inf
        columns = (column_N[ended_N].tolist() for column_N in (score_N, start_N, log_prob_N, place_N, step_N))
        return sorted(zip(*columns, strict=True), key=lambda entry: -entry[0])


def _trace(links: list[tuple[list[int], list[int]]], row: int, token: int) -> list[int]:
    """Follow the links from the last token of a hypothesis back to its first -> all its tokens."""
    tokens = [token]
    for rows, chosen in reversed(links):
        tokens.append(chosen[row])
        row = rows[row]
    return tokens[::-1]
