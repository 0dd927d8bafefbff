"""Beam search over any stepper, for many prompts at once.

At each step, the 2K most probable one-token continuations of a prompt's open hypotheses become candidates. A candidate
that ends with `eos` finishes if it is among the first K; the best K that do not end stay open. Finished hypotheses take
no place from open ones: each open hypothesis has only one continuation by `eos`, so at least K of the 2K do not end.
Hypotheses are ranked by

    score = log p / length ^ length_penalty        (length counts the new tokens, eos included)

The search for a prompt stops when K of its hypotheses have finished and the best open one, at its present length,
scores no better than the worst of the best K (the default of transformers). It stops earlier when no open hypothesis
can reach the score of the n-th best finished one any more, which changes no result. At the length limit the first K
candidates finish, whether they end with `eos` or not. Width 1 is greedy search; a beam wide enough for every sequence
is exhaustive search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chainrule.base.choosing import TokenChooser
from chainrule.base.lazy import LazyModule, torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.limits import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, Any]

kernel: Any = LazyModule("chainrule.decoding.beam_kernel")

LENGTH_PENALTY = 1.0
"""Default exponent of the length in the score: hypotheses are ranked by their mean log-probability per token."""

BUCKETS = 256
"""Buckets into which a large vocabulary is divided; about the fastest number for 2,000 to 50,000 words."""


@dataclass(frozen=True)
class Hypothesis:
    """One continuation: the new tokens (with `eos`, if it ended), their log-probability, and the score of its rank."""

    tokens: list[int]
    log_prob: float
    score: float


@without_gradients
def beam_search(
    stepper: Stepper,
    state: State,
    prompt_BT: Tensor,
    *,
    eos: int | None,
    beams: int,
    max_new_tokens: int | Sequence[int] | Tensor,
    length_penalty: float = LENGTH_PENALTY,
    num_return_sequences: int = 1,
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """Continue B prompts -> for each, at most num_return_sequences hypotheses, best first.

    `prompt_BT` (T ≥ 1; its first token is usually `eos`) is read after `state`, which is `stepper.start(B)` or that of
    an encoded source. `eos` None: nothing ends before the limit. `max_new_tokens` is one limit for all prompts, or B
    limits. An `observer` is called with every step; it changes nothing.
    """
    limits = _limits(max_new_tokens, len(prompt_BT))
    check_beam(beams, length_penalty, num_return_sequences)
    if not limits:
        return []
    log_probs_RV, state = stepper.prefill(state, prompt_BT)
    beam = _Beam(log_probs_RV, eos, beams, limits, length_penalty, num_return_sequences)
    candidates, rows = best_continuations(beam.log_prob_AW, log_probs_RV, beam.count), len(prompt_BT)
    while True:
        link = beam.advance(candidates, observer)
        if link is None:
            return beam.hypotheses()
        if not (len(link.row_R) == rows and torch.equal(link.row_R, torch.arange(rows))):
            state = stepper.select(state, link.row_R.to(beam.device))
        candidates, state = _step(stepper, state, link.token_R.to(beam.device), beam)
        rows = len(link.row_R)


def _step(stepper: Stepper, state: State, token_R: Tensor, beam: _Beam) -> tuple[Candidates, State]:
    """Append a token to each row -> the candidates of each prompt, and the new state."""
    chooser = stepper if isinstance(stepper, TokenChooser) else TokenChooser()
    found = chooser.best_continuations(state, token_R, beam.log_prob_AW, beam.count)
    if found is not None:
        return Candidates(*found[:2]), found[2]
    log_probs_RV, state = stepper.step(state, token_R)
    return best_continuations(beam.log_prob_AW, log_probs_RV, beam.count), state


def _limits(max_new_tokens: int | Sequence[int] | Tensor, prompts: int) -> list[int]:
    """One limit per prompt."""
    given = torch.as_tensor(max_new_tokens).tolist()
    limits: list[int] = given if isinstance(given, list) else [given] * prompts
    if len(limits) != prompts:
        raise ConfigError(
            f"max_new_tokens has {len(limits)} values for {prompts} prompts; give one value, or one per prompt"
        )
    for limit in limits:
        check_limit(limit)
    return limits


def check_beam(beams: int, length_penalty: float, returned: int) -> None:
    """Refuse a beam that cannot be searched."""
    if beams < 1:
        raise ConfigError(f"beams is {beams}; expected at least 1")
    if not -10 <= length_penalty <= 10:  # beyond that, length ^ penalty leaves the range of numbers
        raise ConfigError(f"length_penalty is {length_penalty}; expected a number from -10 to 10 (0: no penalty)")
    if not 1 <= returned <= beams:
        raise ConfigError(
            f"num_return_sequences is {returned}; expected 1 to {beams}, the width of the beam: widen the beam for more"
        )


class Candidates(NamedTuple):
    """The best continuations of one step, for each prompt best first."""

    log_prob_AM: Tensor  # -inf where there are fewer
    cell_AM: Tensor  # row · V + token


class FinishedHypothesis(NamedTuple):
    """A hypothesis that ended."""

    prompt: int  # index into the B prompts
    log_prob: float
    cell: int
    score: float
    step: int


class Link(NamedTuple):
    """The rows of one step: the row of the previous step that each continues, and its token."""

    row_R: Tensor
    token_R: Tensor


class BeamStep(NamedTuple):
    """One step, as an observer sees it: the candidates of the prompts that are searched, and those that stay open."""

    prompt_A: Tensor  # indices into the B prompts
    candidates: Candidates
    ended_AM: Tensor  # whether a candidate ends
    link: Link | None  # the rows of the next step; None: the search has ended
    vocab_size: int  # a cell is row · vocab_size + token


Observer = Callable[[BeamStep], None]


def best_continuations(log_prob_AW: Tensor, log_probs_RV: Tensor, count: int) -> Candidates:
    """The best `count` of the W·V continuations of each prompt, given log p of the prefixes and of each next token.

    There may be fewer. Among equals, the first is taken if `count` is 1, as in greedy search; otherwise any.
    """
    (A, W), V = log_prob_AW.shape, log_probs_RV.shape[1]
    log_probs_RV = log_probs_RV.contiguous()
    if 1 < count <= BUCKETS <= V // 8:
        total_AN, cell_AN = _shortlist(log_prob_AW, log_probs_RV, count)
        best_AM, index_AM = total_AN.topk(count, 1)
        return Candidates(best_AM, cell_AN.gather(1, index_AM))
    total_AN = (log_prob_AW[:, :, None] + log_probs_RV.view(A, W, V)).view(A, W * V)
    best_AM, index_AM = total_AN.max(1, True) if count == 1 else total_AN.topk(min(count, W * V), 1)
    return Candidates(best_AM, index_AM + torch.arange(0, A * W * V, W * V, device=index_AM.device)[:, None])


def _shortlist(log_prob_AW: Tensor, log_probs_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Some continuations of each prompt that include the best `count` -> log p AN, and cells row · V + token AN.

    Token v is in bucket v mod Z. The best tokens are in the buckets with the best maxima. Finding the maxima is as fast
    as reading memory; sorting is not.
    """
    (A, W), (R, V), Z = log_prob_AW.shape, log_probs_RV.shape, BUCKETS
    whole, rest = divmod(V, Z)
    max_RZ = log_probs_RV[:, : whole * Z].view(R, whole, Z).amax(1)
    if rest:
        max_RZ[:, :rest] = torch.maximum(max_RZ[:, :rest], log_probs_RV[:, -rest:])
    bucket_AM = (log_prob_AW[:, :, None] + max_RZ.view(A, W, Z)).view(A, W * Z).topk(count, 1, sorted=False).indices
    open_AM, first_AM = bucket_AM // Z, bucket_AM % Z  # the open hypothesis, and the first token of the bucket
    row_AM = open_AM + torch.arange(0, R, W, device=bucket_AM.device)[:, None]
    # The last axis of `cells` and `log_probs` are the tokens of a bucket.
    cells = (row_AM * V + first_AM)[:, :, None] + torch.arange(0, V, Z, device=bucket_AM.device)
    if rest:
        cells[:, :, -1].clamp_(max=R * V - 1)
    log_probs = log_probs_RV.view(-1).index_select(0, cells.view(-1)).view(cells.shape)
    if rest:  # the other buckets have one token less: the value read there belongs to the next row
        log_probs[:, :, -1].masked_fill_(first_AM >= rest, -math.inf)
    log_probs = log_probs + log_prob_AW.gather(1, open_AM)[:, :, None]
    return log_probs.view(A, -1), cells.view(A, -1)


class _Beam:
    """The open and finished hypotheses of all prompts."""

    def __init__(
        self, log_probs_BV: Tensor, eos: int | None, beams: int, limits: list[int], penalty: float, returned: int
    ) -> None:
        B = len(limits)
        # Sums need more digits than a step may have.
        self.dtype: type[Any] = np.float64 if log_probs_BV.dtype == torch.float64 else np.float32
        self.eos = -1 if eos is None else eos
        self.beams, self.penalty, self.returned = beams, float(penalty), returned
        self.prompts, self.V, self.device = B, log_probs_BV.shape[1], log_probs_BV.device
        self.links: list[Link] = []  # one per step
        self.finished: list[FinishedHypothesis] = []
        # Of the prompts that are still searched:
        self.prompt_A: Array = np.arange(B)
        self.limit_A: Array = np.array(limits)
        self.max_divisor_A = self._rounded([limit**self.penalty for limit in limits])
        self.log_prob_AW = self._on_device(np.zeros((B, 1), self.dtype))
        self.best_AK: Array = np.full((B, beams), -math.inf, self.dtype)  # scores of the best finished hypotheses

    @property
    def count(self) -> int:
        """Candidates of a step. With a beam of 1, the best continuation either ends the search or stays open."""
        return 2 * self.beams if self.beams > 1 else 1

    def advance(self, candidates: Candidates, observer: Observer | None = None) -> Link | None:
        """Take one step given the candidates of each prompt -> the rows to continue, or None at the end."""
        length, A, K = len(self.links) + 1, len(self.prompt_A), self.beams
        log_prob_AM, cell_AM = (field_AM.cpu().numpy() for field_AM in candidates)  # the only wait for the device
        prompt_A, last_A = self.prompt_A.copy(), self.limit_A == length
        link = np.empty(A * K, np.int64), np.empty(A * K, np.int64)
        log_prob_AK, finished = np.empty((A, K), self.dtype), self._room(A * K)
        search = log_prob_AK, self.best_AK, self.prompt_A, self.limit_A, self.max_divisor_A
        # The log-probability of a hypothesis only falls, so with a positive penalty its best score is at the limit.
        divisors = length**self.penalty, -1.0 if self.penalty > 0 else (length + 1) ** self.penalty
        ended, active, widest = kernel.advance(
            (log_prob_AM, cell_AM, last_A),
            search,
            self.V,
            self.eos,
            self._rounded(divisors),
            self.returned,
            finished,
            link,
        )
        if ended:
            columns = (field_N[:ended].tolist() for field_N in finished)
            for prompt, log_prob, cell, score in zip(*columns, strict=True):
                self.finished.append(FinishedHypothesis(prompt, log_prob, cell, score, length - 1))
        after = self._continue(log_prob_AK, link, active, widest)
        if observer is not None:
            ended_AM = torch.from_numpy((cell_AM % self.V == self.eos) | last_A[:, None])
            observer(BeamStep(torch.from_numpy(prompt_A), candidates, ended_AM, after, self.V))
        return after

    def _rounded(self, numbers: Sequence[float]) -> Array:
        """Numbers in the type of the scores, infinite where they are too large for it."""
        with np.errstate(over="ignore"):
            return np.array(numbers, self.dtype)

    def _on_device(self, numbers: Array) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    def _room(self, count: int) -> tuple[Array, Array, Array, Array]:
        """Arrays for the hypotheses that end in a step."""
        numbers = np.empty((2, count), self.dtype)
        return np.empty(count, np.int64), numbers[0], np.empty(count, np.int64), numbers[1]

    def _continue(self, log_prob_AK: Array, link: tuple[Array, Array], active: int, widest: int) -> Link | None:
        """Go on with the prompts whose search continues, in as few rows as possible."""
        if not active:
            return None
        self.log_prob_AW = self._on_device(log_prob_AK.reshape(-1)[: active * widest].reshape(active, widest))
        self.prompt_A, self.limit_A, self.max_divisor_A, self.best_AK = (
            field_A[:active] for field_A in (self.prompt_A, self.limit_A, self.max_divisor_A, self.best_AK)
        )
        self.links.append(Link(*(torch.from_numpy(field_N[: active * widest]) for field_N in link)))
        return self.links[-1]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The best finished hypotheses of each prompt."""
        links = [(link.row_R.tolist(), link.token_R.tolist()) for link in self.links]
        found: list[list[Hypothesis]] = [[] for _ in range(self.prompts)]
        for one in sorted(self.finished, key=lambda one: -one.score):
            if len(found[one.prompt]) < self.returned:
                tokens = _trace(links[: one.step], *divmod(one.cell, self.V))
                found[one.prompt].append(Hypothesis(tokens, one.log_prob, one.score))
        return found


def _trace(links: list[tuple[list[int], list[int]]], row: int, token: int) -> list[int]:
    """Follow the links from the last token of a hypothesis back to its first -> all its tokens."""
    tokens = [token]
    for rows, chosen in reversed(links):
        tokens.append(chosen[row])
        row = rows[row]
    return tokens[::-1]
