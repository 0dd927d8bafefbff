"""Requests about lines: how many there may be, how long each may be, and how many are computed before others' turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from chainrule.runs.base import Run
from chainrule.server.engine import Moves
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.requests import Fields

SLICE = 32
"""Lines computed before other requests have their turn."""

WIDTH = 256
"""Characters per line that a slice may have on average: with longer lines it has fewer, and at least one."""

BYTES = 4
"""Bytes of a character, at most."""

T = TypeVar("T")
Answer = Generator[Moves, None, Any]
"""A generator on the engine, whose result is the JSON of the answer."""


class Lines(Fields):
    """A request about one text or several."""

    input: str | list[str]

    @property
    def lines(self) -> list[str]:
        """The texts as a list."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def texts(self) -> list[str]:
        """Everything that is tokenised by itself."""
        return self.lines

    def check(self, limits: Limits) -> None:
        """Refuse more lines than the limits allow."""
        limits.check_prompts("input", [0] * len(self.lines))

    def long_texts(self, limits: Limits) -> list[str]:
        return texts_above(self.texts, limits.prompt_tokens)

    def check_tokens(self, run: Run, limits: Limits) -> None:
        counts = [len(run.tokenizer.encode_block(text)) for text in self.long_texts(limits)]
        limits.check_lines("input", counts, limits.prompt_tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        """Compute the answer on the engine."""
        raise TypeError(f"{type(self).__name__} must define answer")


def texts_above(texts: Sequence[str], most: int) -> list[str]:
    """Texts that may have more than `most` tokens: a token is at least one byte."""
    if BYTES * max(map(len, texts), default=0) <= most:
        return []
    return [text for text in texts if len(text.encode()) > most]


def in_slices(
    lines: Sequence[T], size: int, compute: Callable[[Sequence[T]], list[Any]], length: Callable[[Any], int] = len
) -> Generator[Moves, None, list[Any]]:
    """The results of lines, at most `size` at a time; in between others compute. `length` is in characters."""
    found: list[Any] = []
    for one in slices([length(line) for line in lines], size):
        yield []
        found += compute(lines[one])
    return found


def slices(lengths: Sequence[int], size: int) -> Iterator[slice]:
    """Slices of at most `size` lines, with at most `size` * WIDTH characters if they have more than one line."""
    ends, begin = list(accumulate(lengths)), 0
    while begin < len(ends):
        room = size * WIDTH + (ends[begin - 1] if begin else 0)
        end = max(begin + 1, min(begin + size, bisect_right(ends, room)))
        yield slice(begin, end)
        begin = end


def characters(given: str | Sequence[str]) -> int:
    """Characters of a text, or of a list of texts."""
    return len(given) if isinstance(given, str) else sum(map(len, given))
