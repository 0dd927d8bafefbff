"""Phrases that a text must contain, and the progress of a text in writing them: an automaton over tokens.

A phrase has one or more spellings, each a sequence of tokens. It may be closed: then it counts only if one of its
followers comes next, for example a space or the end of the text, but no letter that would continue a word. All phrases
of a text that have followers have the same ones. A state of
the automaton is made of how often each phrase is yet to be written and the last tokens of the text, as far as they are
tokens of phrases. States and transitions are found when they are first needed and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Phrase:
    """Tokens that must occur in the text, in one of some spellings, `count` times or more."""

    spellings: tuple[Tokens, ...]
    count: int = 1
    exact: bool = False  # not more often, unless another phrase contains it
    followers: frozenset[int] | None = None  # tokens of which one must come next; None: any, or none

    @property
    def shortest(self) -> int:
        """The tokens that write it, at least, with its follower."""
        return min(map(len, self.spellings)) + self.closing

    @property
    def closing(self) -> int:
        """1 if a follower must come next, else 0."""
        return int(self.followers is not None)

    def ends(self, tail: Tokens, token: int) -> bool:
        """Whether a token after a tail makes the phrase count once more."""
        if self.followers is None:
            return any((*tail, token)[-len(one) :] == one for one in self.spellings)
        return token in self.followers and self.written(tail)

    def written(self, tail: Tokens) -> bool:
        """Whether a text ends with a spelling."""
        return any(tail[-len(one) :] == one for one in self.spellings)


class Transition(NamedTuple):
    """The progress after a token, and whether the token writes a phrase once too often."""

    progress: Progress
    surplus: bool


class Progress:
    """How much of the phrases a text contains: a state of the automaton."""

    def __init__(self, phrases: Phrases, missing: Tokens, tail: Tokens) -> None:
        self._phrases, self._missing, self._tail = phrases, missing, tail
        self._transitions: dict[int, Transition] = {}
        self.missing = sum(missing)
        self.matched, self.needed = self._measure()
        self.bank = self.missing, self.matched  # the amount of progress; the bank (0, 0) has all phrases

    def _measure(self) -> tuple[int, int]:
        """How many tokens of a missing phrase the text ends with, at most, and the tokens that complete all phrases."""
        wanted = list(zip(self._phrases.phrases, self._missing, strict=True))
        total = sum(count * phrase.shortest for phrase, count in wanted)
        matched, needed = 0, total
        for phrase, count in wanted:
            for spelling in phrase.spellings if count else ():
                length = _matched(self._tail, spelling, len(spelling) - 1 + phrase.closing)
                matched = max(matched, length)
                if length:
                    needed = min(needed, total - phrase.shortest + len(spelling) + phrase.closing - length)
        return matched, needed

    @cached_property
    def closing(self) -> frozenset[int] | None:
        """The tokens that close a phrase that the text ends with; None: it ends with no phrase that needs one."""
        phrases = [phrase for phrase in self._phrases.phrases if phrase.written(self._tail)]
        return next((phrase.followers for phrase in phrases if phrase.followers is not None), None)

    def after(self, token: int) -> Transition:
        """The progress after any token."""
        if token in self._phrases.tokens:
            return self.follow(token)
        return self.close if token in (self.closing or ()) else Transition(self.pause, False)

    def follow(self, token: int) -> Transition:
        """The progress after a token of a phrase."""
        if token not in self._transitions:
            self._transitions[token] = self._step(token, (*self._tail, token))
        return self._transitions[token]

    @cached_property
    def moves(self) -> list[tuple[int, Transition]]:
        """The tokens of phrases that lead to another bank than tokens of no phrase do."""
        ways = [(token, self.follow(token)) for token in self._phrases.ordered]
        return [(token, way) for token, way in ways if way.progress.bank != self.pause.bank]

    @cached_property
    def pause(self) -> Progress:
        """The progress after a token that is in no phrase and closes none."""
        return self._phrases.state(self._missing, ())

    @cached_property
    def close(self) -> Transition:
        """The progress after a token that is in no phrase and closes one."""
        return self._step(min(self.closing or (0,)), ())

    def _step(self, token: int, tail: Tokens) -> Transition:
        ended = [phrase.ends(self._tail, token) for phrase in self._phrases.phrases]
        missing = tuple(max(0, count - end) for count, end in zip(self._missing, ended, strict=True))
        both = zip(self._phrases.phrases, self._missing, ended, strict=True)
        surplus = any(phrase.exact and not count and end for phrase, count, end in both)
        return Transition(self._phrases.state(missing, tail), surplus)


class Phrases:
    """The phrases of one text: the automaton."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = list(phrases)
        self.tokens = {token for phrase in phrases for spelling in phrase.spellings for token in spelling}
        self.ordered = sorted(self.tokens)
        spellings = [spelling for phrase in phrases for spelling in phrase.spellings]
        self._beginnings = {spelling[:length] for spelling in spellings for length in range(len(spelling) + 1)}
        self._states: dict[tuple[Tokens, Tokens], Progress] = {}
        self._masks: tuple[Array, Array] | None = None

    def state(self, missing: Tokens, tail: Tokens) -> Progress:
        """The state with these phrases missing, after these tokens, of which only the beginning of a phrase matters."""
        while tail and tail not in self._beginnings:
            tail = tail[1:]
        if (missing, tail) not in self._states:
            self._states[missing, tail] = Progress(self, missing, tail)
        return self._states[missing, tail]

    def begin(self, given: Sequence[int]) -> Progress:
        """The progress of a given text."""
        progress = self.state(tuple(phrase.count for phrase in self.phrases), ())
        for token in given:
            progress = progress.after(token).progress
        return progress

    def occur_in(self, given: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether tokens after a given text write all phrases that it lacks, and the exact ones not more often."""
        progress = self.begin(given)
        for token in tokens:
            progress, surplus = progress.after(token)
            if surplus:
                return False
        return not progress.missing

    def masks(self, size: int) -> tuple[Array, Array]:
        """Of the tokens that are in no phrase those that close phrases, and the others -> bool V, V."""
        if self._masks is None:
            closing_V, free_V = np.zeros(size, bool), np.ones(size, bool)
            for phrase in self.phrases:
                closing_V[sorted(phrase.followers or ())] = True
            free_V[self.ordered] = False
            self._masks = closing_V & free_V, ~closing_V & free_V
        return self._masks


def _matched(tail: Tokens, spelling: Tokens, most: int) -> int:
    """How many tokens at the end of a text begin the spelling, at most `most`."""
    for length in range(min(len(tail), most), 0, -1):
        if tail[-length:] == spelling[:length]:
            return length
    return 0
