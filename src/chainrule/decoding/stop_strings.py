"""Where a text that is being generated is to end: before one of some given texts, such as a newline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from chainrule.errors import ConfigError


class Stops:
    """Some texts before which generation ends."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [stops] if isinstance(stops, str) else list(stops)
        if not all(self.stops):
            raise ConfigError("stop got an empty text, which is everywhere; give at least one character, such as '\\n'")

    def __bool__(self) -> bool:
        return bool(self.stops)

    def find(self, text: str, begin: int = 0) -> int | None:
        """Where the first of them begins, None if none is there."""
        return min((place for stop in self.stops if (place := text.find(stop, begin)) >= 0), default=None)

    def cut(self, text: str, begin: int) -> str:
        """A text without the first of them behind `begin`, and what follows it."""
        return text[: self.find(text, begin)]

    def pieces(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces of a text up to the first of them; what may be its beginning waits for what comes next."""
        held = ""
        for piece in pieces:
            held += piece
            if (end := self.find(held)) is not None:
                if held[:end]:
                    yield held[:end]
                return
            safe = len(held) - self._begun(held)
            if held[:safe]:
                yield held[:safe]
            held = held[safe:]
        if held:
            yield held

    def _begun(self, text: str) -> int:
        """How many of the last characters are the beginning of one of them."""
        longest = min(len(text), max(map(len, self.stops)) - 1)
        return next(
            (count for count in range(longest, 0, -1) if any(stop.startswith(text[-count:]) for stop in self.stops)), 0
        )

    def until(self, steps: Iterator[list[int]], text_of: Callable[[list[int]], str], begin: int) -> list[list[int]]:
        """Rows of tokens that grow by one each a step, until one of the texts is in every row.

        `text_of` gives the text of a row's tokens, of which the first `begin` characters are not looked at.
        """
        rows: list[list[int]] = []
        stopped: set[int] = set()
        for step in steps:
            rows = rows or [[] for _ in step]
            for number, token in enumerate(step):
                if number in stopped:
                    continue
                rows[number].append(token)
                if self.find(text_of(rows[number]), begin) is not None:
                    stopped.add(number)
            if len(stopped) == len(rows):
                break
        return rows
