"""Drafters for speculative decoding: from another model, from the text itself, or from a given text.

Each follows one text: it is called repeatedly with the text so far, and reads what is new in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.decoding.speculative import MIN_LOG_PROB, Drafter
from chainrule.types import State, Stepper


class StepperDrafter:
    """Proposes the most probable tokens of a cheaper model with the same vocabulary, one after the other."""

    def __init__(
        self, stepper: Stepper, state: State, *, window: int | None = None, min_log_prob: float = MIN_LOG_PROB
    ) -> None:
        """`state` is the state before the first token of the prompt: `start(1)`, or that of a source.

        `window` is the maximum number of tokens that the model can read, if there is one. A draft ends where its
        log-probability falls below `min_log_prob`.
        """
        self.stepper, self.window, self.min_log_prob = stepper, window, min_log_prob
        self._state, self._read, self._device = state, 0, device_of(stepper)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        if self.window is not None:
            count = min(count, self.window - len(tokens) + 1)
        if count < 1:
            return []
        new, self._read = tokens[self._read :], len(tokens)
        tokens_1T = torch.tensor([new], device=self._device)
        draft, self._state = self.stepper.propose(self._state, tokens_1T, count, self.min_log_prob)
        return draft


class LookupDrafter:
    """Proposes what followed the last few tokens when they last occurred; the longest match counts."""

    def __init__(self, known: Sequence[int] = (), *, longest: int = 8, shortest: int = 2) -> None:
        """`known` are tokens to search besides the text, for example a source; a match has `shortest` to `longest`."""
        self.longest, self.shortest = longest, shortest
        self._tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}  # n-gram -> index after its last occurrence
        self._read = 0
        self._append(known)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        self._append(tokens[self._read :])
        self._read = len(tokens)
        end = len(self._tokens)
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            place = self._next.get(tuple(self._tokens[end - size :]))
            if place is not None:
                draft = self._tokens[place : place + count]
                while len(draft) < count:  # the match reaches the end of the text: continue its repetition
                    draft.append(draft[place - end])
                return draft
        return []

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self._tokens)
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._next[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)


class FallbackDrafter:
    """Asks several drafters in order and takes the first proposal."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        for drafter in self.drafters:
            if draft := drafter.propose(tokens, count):
                return draft
        return []


class GivenTextDrafter:
    """Proposes the tokens of a given text, which is followed in parallel with the generated one.

    Where the two differ, the given text is realigned: at the place where its last tokens match those of the generated
    text, as near as possible to the expected place. Without a match, it moves on by one token.
    """

    def __init__(self, given: Sequence[int], *, prompt: int = 1, longest: int = 4) -> None:
        """`given` drafts what follows the first `prompt` tokens; up to `longest` tokens are compared to align it."""
        self.given, self.prompt, self.longest = list(given), prompt, longest
        self._next: defaultdict[int, list[int]] = defaultdict(list)  # token -> indices after its occurrences
        for place, token in enumerate(self.given):
            self._next[token].append(place + 1)
        self._shift = 0  # how far the place in the given text is ahead of the generated one

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        generated = len(tokens) - self.prompt
        if generated > 0:
            expected = generated + self._shift
            places = self._next[tokens[-1]]
            if places:
                self._shift = max(places, key=lambda place: (self._match_length(tokens, place), -abs(place - expected)))
                self._shift -= generated
        place = max(0, generated + self._shift)
        return self.given[place : place + count]

    def _match_length(self, tokens: Sequence[int], place: int) -> int:
        """How many tokens before a place of the given text equal the last tokens of the text, up to `longest`."""
        limit = min(self.longest, place, len(tokens) - self.prompt)
        for size in range(limit):
            if self.given[place - 1 - size] != tokens[len(tokens) - 1 - size]:
                return size
        return limit
