"""Decoding with models that can predict a whole target in parallel, besides token by token.

`translate_in_parallel` takes the tokens of one parallel pass. It can try several lengths, of which the autoregressive
branch selects the best, and refine the result by further passes.

`draft_in_parallel` uses the pass as a draft for speculative decoding. The autoregressive branch reads some tokens of
the draft in one pass, which gives the greedy choice after each prefix. Tokens that agree are kept, and the first one
that differs is corrected; if the corrected token occurs in the draft, the draft continues after it. So every pass gives
at least one token, and the result is that of greedy search, token for token. The number of tokens read per pass follows
the number that agreed before.

Repeated tokens are the most common mistake of a pass that does not see its other outputs (Lee et al., 2018). Of
adjacent positions with the same token, the most certain one keeps it. Each of the others takes its second choice if
that is nearly as probable as the first, and is left out otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from chainrule.base.modes import without_gradients
from chainrule.errors import ConfigError
from chainrule.types import Source, State

FIRST_WINDOW = 8
"""Tokens of a draft that the first pass reads, at most."""

MAX_GAP = math.log(2)
"""How much less probable a second choice may be, in nats, to replace a repeated token."""

Seconds = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Rows M and positions M -> the second most probable token there, M, and how much less probable it is, in nats, M."""


class ParallelTranslator(Protocol):
    """What parallel decoding needs of a model."""

    def encode(self, source: Source) -> Any:
        """What both branches need of a source."""
        ...

    def begin_decoding(self, encoded: Any, *, stepping: bool, mixed: bool = True) -> State:
        """The state before the first token; `mixed` False: without the parallel branch."""
        ...

    def predict_lengths(self, encoded: Any, count: int = 1) -> Tensor:
        """The most probable lengths of each target, without `eos`, best first -> BK."""
        ...

    def predict_parallel(self, encoded: Any, lengths_R: Tensor, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """log p of all tokens at all positions of rows of given lengths, up to a constant per position -> RTV.

        `known` are tokens RT and a mask of those that the model sees, bool RT.
        """
        ...

    def decode_ctc(self, encoded: Any) -> list[list[int]] | None:
        """The tokens of each target by CTC; None: the model predicts by length."""
        ...

    def predict_words(self, encoded: Any, lengths_R: Tensor) -> tuple[Tensor, Seconds]:
        """The most probable tokens at all positions of rows of given lengths, RT, and the second ones at given ones."""
        ...

    def draft_words(self, encoded: Any, state: State) -> tuple[Tensor, Seconds, Tensor]:
        """`predict_words` at the best length of each source, and that length B; the state may hold them already."""
        ...

    def target_log_probs(self, state: State, inputs_RT: Tensor, targets_RT: Tensor) -> Tensor:
        """log p of each target after the state and the inputs up to it -> RT."""
        ...

    def check(self, state: State, position: int | Tensor, tokens_RT: Tensor) -> tuple[Tensor, Any]:
        """Read T tokens from a position on -> the most probable token after each, RT, and the path for `advance`.

        Tokens after the first one that is not the next of its row are undefined.
        """
        ...

    def advance(self, state: State, path: Any, last_R: list[int]) -> State:
        """The state after the first last_R[r] + 1 tokens that `check` read in row r."""
        ...

    def select(self, state: State, rows_K: Tensor) -> State:
        """The state whose row k is row rows_K[k] of the given one."""
        ...


# Parallel translation


@without_gradients
def translate_in_parallel(
    model: ParallelTranslator, source: Source, *, lengths: int = 1, refine: int = 0, eos: int
) -> list[list[int]]:
    """The tokens of a target for each source, without `eos` and repetitions, from one pass and `refine` further ones.

    Targets of the `lengths` most probable lengths are compared by their mean log p per token under the autoregressive
    branch, and the best is returned.
    """
    _check(lengths, refine)
    encoded = model.encode(source)
    if (rows := model.decode_ctc(encoded)) is not None:
        _check_ctc(lengths, refine)
        return [_before_eos(row, eos) for row in rows]
    length_BK = model.predict_lengths(encoded, lengths)
    B, K = length_BK.shape
    length_R = length_BK.flatten()
    if refine:
        rows = _refine(model, encoded, length_R, refine, eos)
    else:
        rows = _best_tokens(*model.predict_words(encoded, length_R), length_R, eos)
    if K == 1:
        return rows
    best_B = _mean_log_probs(model, encoded, rows, K, eos, length_R.device).view(B, K).argmax(1)
    return [rows[number * K + best] for number, best in enumerate(best_B.tolist())]


def _check(lengths: int, refine: int) -> None:
    if lengths < 1:
        raise ConfigError(f"lengths is {lengths}; expected at least 1")
    if refine < 0:
        raise ConfigError(f"refine is {refine}; expected at least 0 (0: a single pass)")


def _check_ctc(lengths: int, refine: int) -> None:
    if lengths > 1 or refine:
        raise ConfigError(
            f"lengths is {lengths} and refine is {refine}, but a CTC model predicts no length and cannot refine; "
            "leave them out, or train with model.nar=positions"
        )


def _refine(model: ParallelTranslator, encoded: Any, length_R: Tensor, passes: int, eos: int) -> list[list[int]]:
    """Predict the least certain tokens of each row again given the others, fewer in each pass.

    Remaining repetitions were visible to the model, so they are merged without a second choice.
    """
    tokens_RT, log_prob_RT = _most_probable(model.predict_parallel(encoded, length_R))
    beyond_RT = torch.arange(tokens_RT.shape[1], device=length_R.device) >= length_R[:, None]
    for number in range(1, passes + 1):
        masked_R = (length_R * (1 - number / (passes + 1))).ceil()
        rank_RT = log_prob_RT.masked_fill(beyond_RT, 1.0).argsort(1).argsort(1)  # 0: the least certain
        shown_RT = (rank_RT >= masked_R[:, None]) & ~beyond_RT
        new_RT, new_log_prob_RT = _most_probable(model.predict_parallel(encoded, length_R, (tokens_RT, shown_RT)))
        tokens_RT = torch.where(shown_RT, tokens_RT, new_RT)
        log_prob_RT = torch.where(shown_RT, log_prob_RT, new_log_prob_RT)
    return [[token for token, _ in groupby(row)] for row in _cut_rows(tokens_RT, length_R, eos)]


def _most_probable(scores_RTV: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable tokens and their log p -> RT, RT."""
    best_RT, tokens_RT = scores_RTV.max(2)
    return tokens_RT, best_RT - scores_RTV.logsumexp(2)


def _cut_rows(tokens_RT: Tensor, length_R: Tensor, eos: int) -> list[list[int]]:
    """The tokens of each row up to its length or its first `eos`."""
    return [_before_eos(row[:length], eos) for row, length in zip(tokens_RT.tolist(), length_R.tolist(), strict=True)]


def _best_tokens(tokens_RT: Tensor, seconds: Seconds, length_R: Tensor, eos: int) -> list[list[int]]:
    """The most probable tokens of each row up to its length or its first `eos`, without adjacent repetitions."""
    rows = _cut_rows(tokens_RT, length_R, eos)
    repeated = [(number, place) for number, row in enumerate(rows) for place in _repeated_places(row)]
    if not repeated:
        return rows
    number_M, place_M = torch.tensor(repeated, device=length_R.device).unbind(1)
    token_M, gap_M = seconds(number_M, place_M)
    second = dict(zip(repeated, zip(token_M.tolist(), gap_M.tolist(), strict=True), strict=True))
    return [_before_eos(_replace_repeats(number, row, second), eos) for number, row in enumerate(rows)]


def _repeated_places(row: list[int]) -> list[int]:
    """The positions whose token equals that of a neighbour."""
    same = [False, *(one == other for one, other in pairwise(row)), False]
    return [place for place in range(len(row)) if same[place] or same[place + 1]]


def _replace_repeats(number: int, row: list[int], second: dict[tuple[int, int], tuple[int, float]]) -> list[int]:
    """The row without adjacent repetitions, given the second choice of each repeated position and its gap in nats."""
    kept: list[int] = []
    for token, run in groupby(range(len(row)), row.__getitem__):
        places = [*run]
        most_certain = max(places, key=lambda place: second[number, place][1]) if len(places) > 1 else places[0]
        for place in places:
            if place == most_certain:
                kept.append(token)
            elif second[number, place][1] <= MAX_GAP:
                kept.append(second[number, place][0])
    return [token for token, _ in groupby(kept)]


def _before_eos(row: list[int], eos: int) -> list[int]:
    """The tokens before the first `eos`."""
    return row[: row.index(eos)] if eos in row else row


def _mean_log_probs(
    model: ParallelTranslator, encoded: Any, rows: list[list[int]], count: int, eos: int, device: torch.device
) -> Tensor:
    """The mean log p per token, `eos` included, of `count` rows for each source by the autoregressive branch -> R."""
    state = model.begin_decoding(encoded, stepping=False, mixed=False)
    R, T = len(rows), max(map(len, rows)) + 1
    state = model.select(state, torch.arange(R, device=device) // count)
    targets_RT = torch.tensor([[*row, *[eos] * (T - len(row))] for row in rows], device=device)
    inputs_RT = torch.cat([targets_RT.new_full((R, 1), eos), targets_RT[:, :-1]], 1)
    log_prob_RT = model.target_log_probs(state, inputs_RT, targets_RT)
    tokens_R = torch.tensor([len(row) + 1 for row in rows], device=device)
    real_RT = torch.arange(T, device=device) < tokens_R[:, None]
    return (log_prob_RT * real_RT).sum(1) / tokens_R


# Drafts


@without_gradients
def draft_in_parallel(
    model: ParallelTranslator, source: Source, *, eos: int, limits: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """The greedy translation of each source, within its limit of tokens, and the number of passes it took.

    A row ends with `eos` unless it reached its limit. A pass reads part of the draft, all positions at once.
    """
    if len(limits) != len(source.tokens_BS):
        raise ConfigError(f"got {len(limits)} limits for {len(source.tokens_BS)} sources; give one limit per source")
    encoded = model.encode(source)
    state = model.begin_decoding(encoded, stepping=True)
    device = source.tokens_BS.device
    if (drafts := model.decode_ctc(encoded)) is None:
        drafts = _best_tokens(*model.draft_words(encoded, state), eos)
    rows = [_DraftedRow(_before_eos(draft, eos), limit, eos) for draft, limit in zip(drafts, limits, strict=True)]
    active = rows
    while active:
        inputs = [row.inputs() for row in active]
        T = max(map(len, inputs))
        inputs_RT = torch.tensor([[*tokens, *[eos] * (T - len(tokens))] for tokens in inputs], device=device)
        places = [len(row.tokens) for row in active]
        place = places[0] if min(places) == max(places) else torch.tensor(places, device=device)
        greedy_RT, path = model.check(state, place, inputs_RT)
        last = [row.accept(tokens) - 1 for row, tokens in zip(active, greedy_RT.tolist(), strict=True)]
        state = model.advance(state, path, last)
        remaining = [number for number, row in enumerate(active) if not row.ended]
        if len(remaining) < len(active):
            active = [active[number] for number in remaining]
            if active:
                state = model.select(state, torch.tensor(remaining, device=device))
    return [row.tokens for row in rows], [row.passes for row in rows]


class _DraftedRow:
    """A target that is being decoded: its confirmed tokens, and a draft of the rest."""

    def __init__(self, draft: list[int], limit: int, eos: int) -> None:
        self.draft = [*draft, eos]
        self.limit, self.eos = limit, eos
        self.tokens: list[int] = []
        self.next = 0  # index in the draft of the token expected next
        self.window = FIRST_WINDOW
        self.passes = 0

    def inputs(self) -> list[int]:
        """The tokens to read: the last confirmed one, and the next ones of the draft."""
        count = min(self.window, self.limit - len(self.tokens) - 1)
        return [self.tokens[-1] if self.tokens else self.eos, *self.draft[self.next : self.next + count]]

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.limit or self.tokens[-1] == self.eos

    def accept(self, greedy: list[int]) -> int:
        """Keep the drafted tokens that equal the greedy ones, and the greedy one after them -> their number."""
        self.passes += 1
        drafted, agreed = self.inputs()[1:], 0
        while agreed < len(drafted) and greedy[agreed] == drafted[agreed] != self.eos:
            agreed += 1
        self.tokens += greedy[: agreed + 1]
        self.window = 2 * self.window if agreed == len(drafted) else max(1, (agreed + self.window) // 2)
        self._realign(self.next + agreed)
        return agreed + 1

    def _realign(self, expected: int) -> None:
        """Continue the draft after the last token, at its occurrence nearest to the expected index; else there."""
        token, draft = self.tokens[-1], self.draft
        found = [index for index, drafted in enumerate(draft) if drafted == token]
        nearest = min(found, key=lambda index: abs(index - expected)) if found else expected
        self.next = min(nearest + 1, len(draft) - 1)
