"""Drafting: a cheap guess at what comes next is checked by one pass of the model, and the text stays what it was.

    for token in draft_search(model, model.start(1), prompt_1T, LookupDrafter(), eos=eos, max_new_tokens=200,
                              choose=Sample(0.8)): ...

To read a handful of tokens at once takes a model hardly longer than to read one. So a drafter proposes the next few,
the model reads them in one pass that answers log p(. | prefix) after each, and tokens are chosen from these answers in
order, by the same chooser and with the same random numbers as without a draft. As long as the token chosen is the one
that was drafted, the next answer is of the right prefix and the next token is chosen from it; the first that differs is
taken, and what was drafted after it is dropped. Every token of the text is thus the model's own choice, greedy or
drawn, whatever was drafted; a good draft saves passes (Leviathan et al., "Fast Inference from Transformers via
Speculative Decoding", 2023; why nothing more is done here is told in docs/decisions/013).

After a draft that was dropped in part, the model's state must be that of the tokens kept. A stepper may offer

    rewindable(state) -> int | None     how many tokens can be read now and then be taken back; None: never any
    rewind(state, count) -> State       the state without its last `count` tokens

Others keep the state from before the pass, and what has been taken since is read at the start of the next one.

Legend: T time, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from chainrule.decoding.greedy import Chooser, Greedy
from chainrule.decoding.limits import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

DRAFT_TOKENS = 8
"""Tokens drafted at once at most, unless another number is asked for."""

READ_AGAIN = 8
"""Tokens that are read again with every pass at most, by models that cannot take anything back."""

WORTH, FIRST_LUCK, LATELY = 0.4, 2.0, 16
"""Tokens that drafts must have had accepted lately to be worth their passes, what is taken for granted at first, and
over how many drafts about the mean is taken."""

PAUSE, LONGEST_PAUSE = 3, 24
"""Passes without a draft after one that was not worth it, twice as many each time."""


class Drafter(Protocol):
    """Guesses how a text goes on. One drafter follows one text."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` ≥ 1 tokens that may follow.

        `tokens` is all of the text so far, from the first token of the prompt on (usually `eos`); each time it is asked
        the text is longer. Anything may be proposed: a wrong guess costs time and changes nothing.
        """
        ...


@dataclass
class Drafted:
    """How a draft fared."""

    passes: int = 0  # of the model, not counted the reading of a prompt
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0  # spent on drafts and passes

    @property
    def acceptance(self) -> float:
        """The share of what was proposed that the model chose too; 0 if nothing was."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Without a draft it is 1."""
        return self.emitted / self.passes if self.passes else 0.0

    def add(self, other: Drafted) -> None:
        """Count another text in."""
        self.passes += other.passes
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.seconds += other.seconds


def draft_search(
    stepper: Stepper,
    state: State,
    prompt_1T: Tensor,
    drafter: Drafter,
    *,
    eos: int | None,
    max_new_tokens: int,
    choose: Chooser,
    draft_tokens: int = DRAFT_TOKENS,
    record: Drafted | None = None,
) -> Iterator[int]:
    """Yield the tokens that `stream` would yield for one sequence, several at a time where the draft was right.

    `prompt_1T` (T ≥ 1; its first token is usually `eos`) is read after `state`, which is `stepper.start(1)` or knows an
    encoded source. It stops after `eos` (None: never) or after `max_new_tokens`. `record` is kept up to date.
    """
    check_limit(max_new_tokens)
    check_draft_tokens(draft_tokens)
    if len(prompt_1T) != 1:
        raise ConfigError(f"a draft is for one sequence at a time, but the prompt has {len(prompt_1T)} rows.")
    record = Drafted() if record is None else record
    return _walk(stepper, state, prompt_1T, drafter, eos, max_new_tokens, choose, draft_tokens, record)


def draft_one(
    stepper: Stepper,
    state: State,
    prompt_1T: Tensor,
    drafter: Drafter,
    eos: int | None,
    limit: int,
    choose: Chooser | None = None,
    draft_tokens: int = DRAFT_TOKENS,
) -> tuple[list[int], Drafted]:
    """What `draft_search` yields, greedily unless `choose` is given -> the new tokens, and how the draft fared."""
    record = Drafted()
    steps = draft_search(
        stepper,
        state,
        prompt_1T,
        drafter,
        eos=eos,
        max_new_tokens=limit,
        choose=choose or Greedy(),
        draft_tokens=draft_tokens,
        record=record,
    )
    return list(steps), record


def check_draft_tokens(count: int) -> None:
    """Refuse a draft that has no token."""
    if count < 1:
        raise ConfigError(
            f"draft_tokens is {count}, but at least 1 token must be drafted; leave the draft out to have none."
        )


@torch.inference_mode()  # entered anew at each step, so that between steps the caller's own mode holds
def _walk(
    stepper: Stepper,
    state: State,
    prompt_1T: Tensor,
    drafter: Drafter,
    eos: int | None,
    limit: int,
    choose: Chooser,
    most: int,
    record: Drafted,
) -> Iterator[int]:
    """Draft, read, choose, until the text has ended."""
    reader, text, first = _Reader(stepper, state, prompt_1T), prompt_1T[0].tolist(), prompt_1T.shape[1]
    pace = _Pace(most)
    while len(text) - first < limit and (len(text) == first or text[-1] != eos):
        began = time.perf_counter()
        count = min(pace.count(), limit - (len(text) - first) - 1, reader.room(most))
        draft = _possible(drafter.propose(text, count), eos, stepper.vocab_size) if count > 0 else []
        new, accepted = _chosen(reader.read(draft), draft, choose, eos)
        reader.keep(draft, accepted, new[-1])
        text += new
        pace.learn(len(draft), accepted)
        record.add(Drafted(1, len(draft), accepted, len(new), time.perf_counter() - began))
        yield from new


def _possible(draft: list[int], eos: int | None, vocabulary: int) -> list[int]:
    """The draft up to what ends the text, and without what the model has no number for."""
    for place, token in enumerate(draft):
        if not 0 <= token < vocabulary:
            return draft[:place]
        if token == eos:
            return draft[: place + 1]
    return draft


def _chosen(log_probs_TV: Tensor, draft: list[int], choose: Chooser, eos: int | None) -> tuple[list[int], int]:
    """Choose from one answer after the other while the draft is right -> the new tokens, and how many were drafted."""
    new: list[int] = []
    for place in range(len(log_probs_TV)):
        new.append(int(choose(log_probs_TV[place : place + 1])))
        if place == len(draft) or new[-1] != draft[place]:
            return new, place
        if new[-1] == eos:
            break
    return new, len(new)


class _Pace:
    """How many tokens to draft: more after a draft that was right to its end, fewer after one that was not.

    A pass over a draft takes somewhat longer than a step. Where drafts have not been worth that lately, they come more
    and more rarely, to see whether they have become so.
    """

    def __init__(self, most: int) -> None:
        self.most, self.length = most, most
        self.luck, self.pause, self.next_pause = FIRST_LUCK, 0, PAUSE

    def count(self) -> int:
        """How many to ask for now."""
        if self.pause:
            self.pause -= 1
            return 0
        return self.length

    def learn(self, proposed: int, accepted: int) -> None:
        """How the last draft fared."""
        if not proposed:
            return
        right = accepted == proposed
        self.length = min(self.most, self.length + 2) if right else max(1, (self.length + accepted + 2) // 2)
        self.luck += (accepted - self.luck) / LATELY
        if self.luck < WORTH:
            self.pause, self.next_pause = self.next_pause, min(LONGEST_PAUSE, 2 * self.next_pause)
        else:
            self.next_pause = PAUSE


class _Reader:
    """The model with its state, and the tokens of the text that it has not read yet; there is always one."""

    def __init__(self, stepper: Stepper, state: State, prompt_1T: Tensor) -> None:
        self.stepper, self.state, self.device = stepper, state, prompt_1T.device
        if prompt_1T.shape[1] > 1:
            _, self.state = stepper.prefill(state, prompt_1T[:, :-1])
        self.unread: list[int] = prompt_1T[0, -1:].tolist()
        self.after: State = None
        self._takes_back = stepper.rewindable(self.state) is not None

    def room(self, most: int) -> int:
        """How many drafted tokens may be read with the next pass, `most` at most, so that all can be taken back.

        What cannot take back reads again, and may have any number.
        """
        if not self._takes_back:
            return most
        return min(most, (self.stepper.rewindable(self.state) or 0) - 1)

    def read(self, draft: list[int]) -> Tensor:
        """Read what is unread, then the draft -> log p(. | prefix) before and after each drafted token, TV."""
        tokens_1T = torch.tensor([[*self.unread, *draft]], device=self.device)
        log_probs_1TV, self.after = self.stepper.extend(self.state, tokens_1T)
        return log_probs_1TV[0, len(self.unread) - 1 :]

    def keep(self, draft: list[int], accepted: int, token: int) -> None:
        """The text goes on with the first `accepted` tokens of the draft, then `token`."""
        after, self.after = self.after, None
        dropped = len(draft) - accepted
        if not dropped:
            self.state, self.unread = after, [token]
        elif self._takes_back:
            # Nobody else has the longer state, so that what is written next can be written over it.
            self.state, self.unread = self.stepper.rewind(after, dropped), [token]
        else:
            self.unread += [*draft[:accepted], token]
            if len(self.unread) > READ_AGAIN:
                _, self.state = self.stepper.prefill(self.state, torch.tensor([self.unread[:-1]], device=self.device))
                self.unread = self.unread[-1:]
