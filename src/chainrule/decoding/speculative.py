"""Speculative decoding: a drafter guesses the next tokens, one pass of the model checks them, the text is unchanged.

    for token in stream_with_drafts(
        model, model.start(1), prompt_1T, LookupDrafter(), eos=eos, max_new_tokens=200, choose=Sample(0.8)
    ): ...

Reading a few tokens at once takes a model little longer than reading one. So a drafter proposes the next few tokens,
the model reads them in one pass that gives log p(. | prefix) after each, and tokens are chosen from these distributions
in order, by the same chooser and with the same random numbers as without a draft. While the chosen token is the drafted
one, the next distribution belongs to the right prefix, and the next token is chosen from it. The first token that
differs is kept, and the rest of the draft is dropped. So every token is the model's own choice, greedy or sampled,
whatever the draft; a good draft saves passes (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", 2023; docs/decisions/013 explains the difference from their acceptance rule).

A model with the mode draft can also propose itself (`own`): where the drafter has no proposal, the parallel branch of
the model predicts the next tokens in one pass, and the whole model checks them.

After part of a draft is dropped, the state must be that of the kept tokens. Models that can rewind do so. For the
others, the state before the pass is kept, and the next pass reads again the tokens accepted since.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from chainrule.base.lazy import torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.choosers import Chooser, Greedy
from chainrule.decoding.limits import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor

DRAFT_TOKENS = 8
"""Default maximum of tokens per draft."""

MAX_REREAD = 8
"""Tokens that a model without rewind reads again per pass, at most."""

MIN_LOG_PROB = math.log(0.05)
"""A draft ends where the whole draft becomes less probable than this for its model: more would rarely be accepted."""

MIN_ACCEPTED_OWN = 2.0
"""Accepted tokens per draft that are worth a draft by the model itself, which takes about as long as two steps."""

MIN_ACCEPTED, INITIAL_ACCEPTED, AVERAGED_DRAFTS = 0.4, 2.0, 16
"""Accepted tokens per draft that are worth a draft, the value assumed at first, and the number of drafts over which the
running mean is taken, about."""

FIRST_PAUSE, LONGEST_PAUSE = 3, 24
"""Passes without a draft after drafts have not been worthwhile; the pause doubles each time."""


class Drafter(Protocol):
    """Guesses how a text continues. One drafter follows one text."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` ≥ 1 tokens that may follow.

        `tokens` is the whole text so far, from the first token of the prompt (usually `eos`); it is longer at each
        call. Any tokens may be proposed: a wrong guess costs time and changes nothing.
        """
        ...


@dataclass
class DraftStatistics:
    """How many drafted tokens were accepted, in how many passes."""

    passes: int = 0  # passes of the model, without the one that reads the prompt
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0  # time of drafts and passes

    @property
    def acceptance(self) -> float:
        """The share of the proposed tokens that were accepted; 0 if none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Emitted tokens per pass; 1 without a draft."""
        return self.emitted / self.passes if self.passes else 0.0

    def add(self, other: DraftStatistics) -> None:
        """Add the statistics of another text."""
        self.passes += other.passes
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.seconds += other.seconds


def stream_with_drafts(
    stepper: Stepper,
    state: State,
    prompt_1T: Tensor,
    drafter: Drafter,
    *,
    eos: int | None,
    max_new_tokens: int,
    choose: Chooser,
    draft_tokens: int = DRAFT_TOKENS,
    own: bool = False,
    statistics: DraftStatistics | None = None,
) -> Iterator[int]:
    """Yield the tokens that `stream` would yield for one sequence, several at a time where the draft was right.

    `prompt_1T` (T ≥ 1; its first token is usually `eos`) is read after `state`, which is `stepper.start(1)` or that of
    an encoded source. With `own` the model proposes where the drafter does not. The stream ends after `eos` (None:
    never) or after `max_new_tokens`. `statistics` is updated with each pass.
    """
    check_limit(max_new_tokens)
    check_draft_tokens(draft_tokens)
    if len(prompt_1T) != 1:
        raise ConfigError(f"the prompt has {len(prompt_1T)} rows; drafts are for one sequence at a time")
    statistics = DraftStatistics() if statistics is None else statistics
    verifier = _Verifier(stepper, state, prompt_1T)
    sources = [DraftSource(_DraftSchedule(draft_tokens), drafter)]
    if own:
        sources.append(DraftSource(_DraftSchedule(draft_tokens, MIN_ACCEPTED_OWN), verifier))
    return _decode(verifier, prompt_1T[0].tolist(), sources, eos, max_new_tokens, choose, statistics)


def generate_with_drafts(
    stepper: Stepper,
    state: State,
    prompt_1T: Tensor,
    drafter: Drafter,
    eos: int | None,
    limit: int,
    choose: Chooser | None = None,
    draft_tokens: int = DRAFT_TOKENS,
    own: bool = False,
) -> tuple[list[int], DraftStatistics]:
    """Return the tokens that `stream_with_drafts` yields, and the statistics; greedy unless `choose` is given."""
    statistics = DraftStatistics()
    steps = stream_with_drafts(
        stepper,
        state,
        prompt_1T,
        drafter,
        eos=eos,
        max_new_tokens=limit,
        choose=choose or Greedy(),
        draft_tokens=draft_tokens,
        own=own,
        statistics=statistics,
    )
    return list(steps), statistics


def check_draft_tokens(count: int) -> None:
    """Raise an error if drafts may have no token."""
    if count < 1:
        raise ConfigError(f"draft_tokens is {count}; expected at least 1: leave the draft out to have none")


class DraftSource(NamedTuple):
    """A drafter, and the length of its next draft."""

    schedule: _DraftSchedule
    drafter: Drafter


@without_gradients  # entered anew at each step, so the caller's mode applies between steps
def _decode(
    verifier: _Verifier,
    text: list[int],
    sources: list[DraftSource],
    eos: int | None,
    limit: int,
    choose: Chooser,
    statistics: DraftStatistics,
) -> Iterator[int]:
    """Draft, read and choose until the text has ended."""
    verifier.read_prompt()
    first, longest = len(text), sources[0].schedule.max_length
    while len(text) - first < limit and (len(text) == first or text[-1] != eos):
        began = time.perf_counter()
        room = min(limit - (len(text) - first) - 1, verifier.max_draft(longest))
        draft, schedule = _propose(sources, text, room)
        draft = _valid_part(draft, eos, verifier.stepper.vocab_size)
        new, accepted = _choose_tokens(verifier.read(draft), draft, choose, eos)
        verifier.keep(draft, accepted, new[-1])
        text += new
        schedule.update(len(draft), accepted)
        statistics.add(DraftStatistics(1, len(draft), accepted, len(new), time.perf_counter() - began))
        yield from new


def _propose(sources: list[DraftSource], text: list[int], room: int) -> tuple[list[int], _DraftSchedule]:
    """The first proposal of at most `room` tokens, and the schedule of its source."""
    for schedule, drafter in sources:
        count = min(schedule.next_length(), room)
        draft = drafter.propose(text, count) if count > 0 else []
        if draft:
            break
    return draft, schedule


def _valid_part(draft: list[int], eos: int | None, vocabulary: int) -> list[int]:
    """The draft up to and including `eos`, or up to a token that is not in the model's vocabulary."""
    for place, token in enumerate(draft):
        if not 0 <= token < vocabulary:
            return draft[:place]
        if token == eos:
            return draft[: place + 1]
    return draft


def _choose_tokens(log_probs_TV: Tensor, draft: list[int], choose: Chooser, eos: int | None) -> tuple[list[int], int]:
    """Choose a token from each distribution while the draft is right -> the new tokens, and how many were drafted."""
    new: list[int] = []
    for place in range(len(log_probs_TV)):
        new.append(int(choose(log_probs_TV[place : place + 1])))
        if place == len(draft) or new[-1] != draft[place]:
            return new, place
        if new[-1] == eos:
            break
    return new, len(new)


class _DraftSchedule:
    """The length of the next draft: longer after a draft that was accepted completely, shorter otherwise.

    A pass over a draft takes somewhat longer than a step. While drafts are not worth that, pauses between them grow, up
    to a limit, so that the schedule notices when they are worthwhile again.
    """

    def __init__(self, max_length: int, worth: float = MIN_ACCEPTED) -> None:
        """`worth` is the mean number of accepted tokens that makes drafts worthwhile."""
        self.max_length, self.length, self.worth = max_length, max_length, worth
        self.mean_accepted, self.pause, self.next_pause = INITIAL_ACCEPTED, 0, FIRST_PAUSE

    def next_length(self) -> int:
        """The number of tokens to ask for; 0 during a pause."""
        if self.pause:
            self.pause -= 1
            return 0
        return self.length

    def update(self, proposed: int, accepted: int) -> None:
        """Learn from the last draft."""
        if not proposed:
            return
        if accepted == proposed:
            self.length = min(self.max_length, self.length + 2)
        else:
            self.length = max(1, (self.length + accepted + 2) // 2)
        self.mean_accepted += (accepted - self.mean_accepted) / AVERAGED_DRAFTS
        if self.mean_accepted < self.worth:
            self.pause, self.next_pause = self.next_pause, min(LONGEST_PAUSE, 2 * self.next_pause)
        else:
            self.next_pause = FIRST_PAUSE


class _Verifier:
    """The model with its state, and the tokens of the text that it has not read yet; there is always one."""

    def __init__(self, stepper: Stepper, state: State, prompt_1T: Tensor) -> None:
        self.stepper, self.state, self.device = stepper, state, prompt_1T.device
        self.prompt_1T = prompt_1T
        self.unread: list[int] = prompt_1T[0, -1:].tolist()
        self.after: State = None

    def read_prompt(self) -> None:
        """Read the prompt except its last token."""
        if self.prompt_1T.shape[1] > 1:
            _, self.state = self.stepper.prefill(self.state, self.prompt_1T[:, :-1])
        self._rewinds = self.stepper.rewindable(self.state) is not None

    def max_draft(self, limit: int) -> int:
        """How many drafted tokens the next pass may read, at most `limit`, so that all can be rewound.

        A model without rewind reads again and accepts any number.
        """
        if not self._rewinds:
            return limit
        return min(limit, (self.stepper.rewindable(self.state) or 0) - 1)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens by the model's own parallel branch, in one pass."""
        token_1 = torch.tensor(self.unread[-1:], device=self.device)
        log_probs_1TV, self.state = self.stepper.predict_rest(self.state, token_1)
        best_T, tokens_T = log_probs_1TV[0, :count].max(1)
        certain = int((best_T.cumsum(0) >= MIN_LOG_PROB).sum())
        draft: list[int] = tokens_T[:certain].tolist()
        return draft

    def read(self, draft: list[int]) -> Tensor:
        """Read the unread tokens, then the draft -> log p(. | prefix) before and after each drafted token, TV."""
        tokens_1T = torch.tensor([[*self.unread, *draft]], device=self.device)
        log_probs_1TV, self.after = self.stepper.extend(self.state, tokens_1T)
        return log_probs_1TV[0, len(self.unread) - 1 :]

    def keep(self, draft: list[int], accepted: int, token: int) -> None:
        """Continue the text with the first `accepted` tokens of the draft, then `token`."""
        after, self.after = self.after, None
        dropped = len(draft) - accepted
        if not dropped:
            self.state, self.unread = after, [token]
        elif self._rewinds:
            # No other reference to the longer state remains, so the next pass can write over its end.
            self.state, self.unread = self.stepper.rewind(after, dropped), [token]
        else:
            self.unread += [*draft[:accepted], token]
            if len(self.unread) > MAX_REREAD:
                _, self.state = self.stepper.prefill(self.state, torch.tensor([self.unread[:-1]], device=self.device))
                self.unread = self.unread[-1:]
