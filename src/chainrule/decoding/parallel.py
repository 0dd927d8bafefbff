"""Decoding of models that can write a whole target at once, beside writing it word by word.

`translate_in_parallel` takes what the one pass says: of several lengths what the stepwise branch finds best, refined by
further passes if that is wanted. `draft_in_parallel` only drafts so. The stepwise model reads some tokens of the
draft in one pass, which tells after each prefix what greedy search would have written there. What agrees is kept, and
the first word that does not is put right; where that word stands in the draft, the draft goes on after it. So each pass
writes one word at least, and the result is that of greedy search, word for word. How much is read at a time follows
how much agreed before.

A word said twice in a row is the commonest mistake of a pass that cannot see what else it says (Lee et al., 2018). The
surest of such places keeps the word. Another takes its second choice, if that is nearly as probable as the first, and
is left out if not.

Legend: B sources, K lengths tried, R rows, T time, V vocabulary, H width of a state, M places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.types import Source, State

FIRST_WINDOW = 8
"""Tokens of a draft that are read by the first pass at most."""


NEAR = math.log(2)
"""How much less probable a second choice may be, in nats, to be taken for a word that is said already."""


class ParallelWriter(Protocol):
    """What a model must offer to be decoded in parallel."""

    def encode(self, source: Source) -> Any:
        """What both ways of writing need of a source."""
        ...

    def opened(self, encoded: Any, *, stepping: bool, mixed: bool = True) -> State:
        """The state before the first token; not `mixed`: without the parallel branch."""
        ...

    def foretold(self, encoded: Any, count: int = 1) -> Tensor:
        """The most probable lengths of each target, `eos` not counted, the best first -> BK."""
        ...

    def at_once(self, encoded: Any, lengths_R: Tensor, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """log p, but for a constant a place, of all tokens at all places of rows of given lengths -> RTV.

        `known` are tokens RT and which of them are to be seen, bool RT.
        """
        ...

    def by_slots(self, encoded: Any) -> list[list[int]] | None:
        """The tokens of each target, by models that write into slots instead of foretelling a length; else None."""
        ...

    def drafted(self, encoded: Any, state: State) -> tuple[Tensor, Tensor]:
        """The scores of one parallel pass for each source BTV, and its length B; the state may hold them already."""
        ...

    def log_probs_of(self, state: State, inputs_RT: Tensor, targets_RT: Tensor) -> Tensor:
        """log p of each target after the state and the inputs up to it -> RT."""
        ...

    def check(self, state: State, place: int | Tensor, tokens_RT: Tensor) -> tuple[Tensor, Any]:
        """Read T tokens from a position on -> log p(. | prefix) after each, RTV, and what `advance` needs."""
        ...

    def advance(self, state: State, path: Any, last_R: list[int]) -> State:
        """The state after the first last_R[r] + 1 tokens that `check` read in row r."""
        ...

    def select(self, state: State, rows_K: Tensor) -> State: ...


# All at once


@torch.inference_mode()
def translate_in_parallel(
    model: ParallelWriter, source: Source, *, lengths: int = 1, refine: int = 0, eos: int
) -> list[list[int]]:
    """The tokens of a target for each source, without `eos` and repetitions, from one pass and `refine` more.

    Of the targets at the `lengths` most probable lengths the one is given whose log p a token is best, as the branch
    that writes word by word has it.
    """
    _check(lengths, refine)
    encoded = model.encode(source)
    if (rows := model.by_slots(encoded)) is not None:
        _check_slots(lengths, refine)
        return [_until(row, eos) for row in rows]
    length_BK = model.foretold(encoded, lengths)
    B, K = length_BK.shape
    length_R = length_BK.flatten()
    scores_RTV = model.at_once(encoded, length_R)
    rows = _refined(model, encoded, length_R, scores_RTV, refine, eos) if refine else _said(scores_RTV, length_R, eos)
    if K == 1:
        return rows
    best_B = _score(model, encoded, rows, K, eos, length_R.device).view(B, K).argmax(1)
    return [rows[number * K + best] for number, best in enumerate(best_B.tolist())]


def _check(lengths: int, refine: int) -> None:
    if lengths < 1:
        raise ConfigError(f"{lengths} lengths are to be tried, but at least 1 is needed; the default is 1.")
    if refine < 0:
        raise ConfigError(f"a translation is to be refined {refine} times, but 0 is the least; 0 means one pass alone.")


def _check_slots(lengths: int, refine: int) -> None:
    if lengths > 1 or refine:
        raise ConfigError(
            f"a model that writes into slots foretells no length and has no places to write again, but lengths is "
            f"{lengths} and refine {refine}; leave them out, or train with model.nar=positions."
        )


def _refined(
    model: ParallelWriter, encoded: Any, length_R: Tensor, scores_RTV: Tensor, turns: int, eos: int
) -> list[list[int]]:
    """Predict the least sure tokens of each row again with the others in sight, fewer each turn.

    What is left of repetitions then has been seen and kept, so they are said once and nothing stands in for them.
    """
    tokens_RT, log_prob_RT = _surest(scores_RTV)
    beyond_RT = torch.arange(tokens_RT.shape[1], device=length_R.device) >= length_R[:, None]
    for turn in range(1, turns + 1):
        masked_R = (length_R * (1 - turn / (turns + 1))).ceil()
        rank_RT = log_prob_RT.masked_fill(beyond_RT, 1.0).argsort(1).argsort(1)  # 0: the least sure
        shown_RT = (rank_RT >= masked_R[:, None]) & ~beyond_RT
        new_RT, new_log_prob_RT = _surest(model.at_once(encoded, length_R, (tokens_RT, shown_RT)))
        tokens_RT = torch.where(shown_RT, tokens_RT, new_RT)
        log_prob_RT = torch.where(shown_RT, log_prob_RT, new_log_prob_RT)
    return [[token for token, _ in groupby(row)] for row in _rows(tokens_RT, length_R, eos)]


def _surest(scores_RTV: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable tokens and log p of them -> RT, RT."""
    best_RT, tokens_RT = scores_RTV.max(2)
    return tokens_RT, best_RT - scores_RTV.logsumexp(2)


def _rows(tokens_RT: Tensor, length_R: Tensor, eos: int) -> list[list[int]]:
    """The tokens of each row up to its length or its first `eos`."""
    return [_until(row[:length], eos) for row, length in zip(tokens_RT.tolist(), length_R.tolist(), strict=True)]


def _said(scores_RTV: Tensor, length_R: Tensor, eos: int) -> list[list[int]]:
    """The most probable tokens of each row up to its length or its first `eos`, none of them twice in a row."""
    tokens_RT = scores_RTV.argmax(2)
    rows = _rows(tokens_RT, length_R, eos)
    again = [(number, place) for number, row in enumerate(rows) for place in _repeated(row)]
    if not again:
        return rows
    number_M, place_M = torch.tensor(again, device=length_R.device).unbind(1)
    best_M2, token_M2 = scores_RTV[number_M, place_M].topk(2)
    behind_M = best_M2[:, 0] - best_M2[:, 1]
    second = dict(zip(again, zip(token_M2[:, 1].tolist(), behind_M.tolist(), strict=True), strict=True))
    return [_until(_once(number, row, second), eos) for number, row in enumerate(rows)]


def _repeated(row: list[int]) -> list[int]:
    """The places whose token also stands beside them."""
    same = [False, *(one == other for one, other in pairwise(row)), False]
    return [place for place in range(len(row)) if same[place] or same[place + 1]]


def _once(number: int, row: list[int], second: dict[tuple[int, int], tuple[int, float]]) -> list[int]:
    """A row that says no token twice in a row, given each repeated place's second choice and how far it is behind."""
    kept: list[int] = []
    for token, run in groupby(range(len(row)), row.__getitem__):
        places = [*run]
        surest = max(places, key=lambda place: second[number, place][1]) if len(places) > 1 else places[0]
        for place in places:
            if place == surest:
                kept.append(token)
            elif second[number, place][1] <= NEAR:
                kept.append(second[number, place][0])
    return [token for token, _ in groupby(kept)]


def _until(row: list[int], eos: int) -> list[int]:
    """The tokens before the first `eos`."""
    return row[: row.index(eos)] if eos in row else row


def _score(
    model: ParallelWriter, encoded: Any, rows: list[list[int]], count: int, eos: int, device: torch.device
) -> Tensor:
    """log p a token, `eos` among them, of `count` rows for each source by the stepwise branch, in one pass -> R."""
    state = model.opened(encoded, stepping=False, mixed=False)
    R, T = len(rows), max(map(len, rows)) + 1
    state = model.select(state, torch.arange(R, device=device) // count)
    targets_RT = torch.tensor([[*row, *[eos] * (T - len(row))] for row in rows], device=device)
    inputs_RT = torch.cat([targets_RT.new_full((R, 1), eos), targets_RT[:, :-1]], 1)
    log_prob_RT = model.log_probs_of(state, inputs_RT, targets_RT)
    tokens_R = torch.tensor([len(row) + 1 for row in rows], device=device)
    held_RT = torch.arange(T, device=device) < tokens_R[:, None]
    return (log_prob_RT * held_RT).sum(1) / tokens_R


# As drafts


@torch.inference_mode()
def draft_in_parallel(
    model: ParallelWriter, source: Source, *, eos: int, limits: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """What greedy search writes for each source, of at most so many tokens, and how many passes it took.

    A row has `eos` at its end unless it came to its limit. A pass is one reading of a draft, all places at once.
    """
    if len(limits) != len(source.tokens_BS):
        raise ConfigError(f"there are {len(limits)} limits for {len(source.tokens_BS)} sources; give one each.")
    encoded = model.encode(source)
    state = model.opened(encoded, stepping=True)
    device = source.tokens_BS.device
    if (drafts := model.by_slots(encoded)) is None:
        drafts = _said(*model.drafted(encoded, state), eos)
    rows = [_Row(_until(draft, eos), limit, eos) for draft, limit in zip(drafts, limits, strict=True)]
    going = rows
    while going:
        inputs = [row.inputs() for row in going]
        T = max(map(len, inputs))
        inputs_RT = torch.tensor([[*tokens, *[eos] * (T - len(tokens))] for tokens in inputs], device=device)
        places = [len(row.tokens) for row in going]
        place = places[0] if min(places) == max(places) else torch.tensor(places, device=device)
        log_probs_RTV, path = model.check(state, place, inputs_RT)
        last = [row.take(said) - 1 for row, said in zip(going, log_probs_RTV.argmax(2).tolist(), strict=True)]
        state = model.advance(state, path, last)
        still = [number for number, row in enumerate(going) if not row.ended]
        if len(still) < len(going):
            going = [going[number] for number in still]
            if going:
                state = model.select(state, torch.tensor(still, device=device))
    return [row.tokens for row in rows], [row.passes for row in rows]


class _Row:
    """A target in the making: what is sure of it, and what of a draft may come next."""

    def __init__(self, draft: list[int], limit: int, eos: int) -> None:
        self.draft = [*draft, eos]
        self.limit, self.eos = limit, eos
        self.tokens: list[int] = []
        self.next = 0  # where in the draft the next token is looked for
        self.window = FIRST_WINDOW
        self.passes = 0

    def inputs(self) -> list[int]:
        """What to read: the last token that is sure, and so many of the draft."""
        most = min(self.window, self.limit - len(self.tokens) - 1)
        return [self.tokens[-1] if self.tokens else self.eos, *self.draft[self.next : self.next + most]]

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.limit or self.tokens[-1] == self.eos

    def take(self, said: list[int]) -> int:
        """Keep what a pass over the inputs confirms and the word after it -> how many words that is."""
        self.passes += 1
        guessed, agreed = self.inputs()[1:], 0
        while agreed < len(guessed) and said[agreed] == guessed[agreed] != self.eos:
            agreed += 1
        self.tokens += said[: agreed + 1]
        whole = agreed == len(guessed)
        self.window = 2 * self.window if whole else max(1, (agreed + self.window) // 2)
        self._follow(self.next + agreed)
        return agreed + 1

    def _follow(self, expected: int) -> None:
        """Go on after the last token where it stands in the draft, nearest to where it was expected; else there."""
        token, draft = self.tokens[-1], self.draft
        found = [place for place, word in enumerate(draft) if word == token]
        nearest = min(found, key=lambda place: abs(place - expected)) if found else expected
        self.next = min(nearest + 1, len(draft) - 1)
