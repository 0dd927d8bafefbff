"""Where drafts come from: another model, the text itself, or a text that was given.

Each follows one text: it is asked again and again with the text so far, and looks at what is new in it.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from chainrule.base.devices import device_of
from chainrule.decoding.draft import Drafter
from chainrule.types import State, Stepper

LEAST = math.log(0.05)
"""A draft ends where its model finds all of it together less probable than this: the rest would hardly be accepted."""


class StepperDrafter:
    """The most probable tokens under a cheaper model of the same vocabulary, one after the other."""

    def __init__(self, stepper: Stepper, state: State, *, window: int | None = None, least: float = LEAST) -> None:
        """`state` is that before the first token of the prompt: `start(1)`, or that of a source.

        `window` is the most tokens that the model can read, if there is such a number; `least` is where a draft ends.
        """
        self.stepper, self.window, self.least = stepper, window, least
        self._state, self._seen, self._device = state, 0, device_of(stepper)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        if self.window is not None:
            count = min(count, self.window - len(tokens) + 1)
        if count < 1:
            return []
        new, self._seen = tokens[self._seen :], len(tokens)
        tokens_1T = torch.tensor([new], device=self._device)
        draft, self._state = self.stepper.propose(self._state, tokens_1T, count, self.least)
        return draft


class LookupDrafter:
    """What came after the last few tokens when they came before: the longest run found, where it was seen last."""

    def __init__(self, known: Sequence[int] = (), *, longest: int = 8, shortest: int = 2) -> None:
        """`known` are tokens to look into besides the text, such as a source; runs of `longest` to `shortest` count."""
        self.longest, self.shortest = longest, shortest
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # where the text went on after a run
        self._seen = 0
        self._take(known)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        self._take(tokens[self._seen :])
        self._seen = len(tokens)
        end = len(self._tokens)
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            place = self._places.get(tuple(self._tokens[end - size :]))
            if place is not None:
                draft = self._tokens[place : place + count]
                while len(draft) < count:  # what was found reaches up to the end: the text repeats itself
                    draft.append(draft[place - end])
                return draft
        return []

    def _take(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self._tokens)
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._places[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)


class FirstDrafter:
    """The first of several drafters that has something to propose."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        for drafter in self.drafters:
            if draft := drafter.propose(tokens, count):
                return draft
        return []


class GivenDrafter:
    """A text that was written at one go, gone through side by side with the one that comes about.

    Where the two part, it is taken up again where its last tokens are those of the text, as near as can be to where it
    was left, and one place further on if it has none of them.
    """

    def __init__(self, given: Sequence[int], *, prompt: int = 1, longest: int = 4) -> None:
        """`prompt` tokens come before what `given` is a draft of; up to `longest` tokens tell one place from others."""
        self.given, self.prompt, self.longest = list(given), prompt, longest
        self._after: defaultdict[int, list[int]] = defaultdict(list)  # token -> where the given text goes on after it
        for place, token in enumerate(self.given):
            self._after[token].append(place + 1)
        self._shift = 0  # how much further the given text is than the one that comes about

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        written = len(tokens) - self.prompt
        if written > 0:
            expected = written + self._shift
            places = self._after[tokens[-1]]
            if places:
                self._shift = max(places, key=lambda place: (self._agreeing(tokens, place), -abs(place - expected)))
                self._shift -= written
        place = max(0, written + self._shift)
        return self.given[place : place + count]

    def _agreeing(self, tokens: Sequence[int], place: int) -> int:
        """How many tokens before a place of the given text are those that end the text, as far as it matters."""
        most = min(self.longest, place, len(tokens) - self.prompt)
        for size in range(most):
            if self.given[place - 1 - size] != tokens[len(tokens) - 1 - size]:
                return size
        return most
