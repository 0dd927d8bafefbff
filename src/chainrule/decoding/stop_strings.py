"""Stop strings: generation ends before the first of some given strings, for example a newline."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from chainrule.errors import ConfigError


class StopStrings:
    """The strings before which generated text ends."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = [strings] if isinstance(strings, str) else list(strings)
        if not all(self.strings):
            raise ConfigError("stop contains an empty string; give at least one character, for example '\\n'")

    def __bool__(self) -> bool:
        return bool(self.strings)

    def find(self, text: str, start: int = 0) -> int | None:
        """The index of the first stop string from `start` on; None: there is none."""
        return min((index for stop in self.strings if (index := text.find(stop, start)) >= 0), default=None)

    def cut(self, text: str, start: int) -> str:
        """The text up to the first stop string from `start` on."""
        return text[: self.find(text, start)]

    def cut_pieces(self, pieces: Iterator[str]) -> Generator[str, None, bool]:
        """The pieces of a text up to the first stop string; what may be the beginning of one is held back.

        It returns whether there was a stop string.
        """
        held = ""
        for piece in pieces:
            held += piece
            if (end := self.find(held)) is not None:
                if held[:end]:
                    yield held[:end]
                return True
            safe = len(held) - self.partial_match(held)
            if held[:safe]:
                yield held[:safe]
            held = held[safe:]
        if held:
            yield held
        return False

    def partial_match(self, text: str) -> int:
        """How many characters at the end of the text are the beginning of a stop string."""
        longest = min(len(text), max(map(len, self.strings)) - 1)
        return next(
            (count for count in range(longest, 0, -1) if any(stop.startswith(text[-count:]) for stop in self.strings)),
            0,
        )

    def collect_rows(
        self, steps: Iterator[list[int]], text_of: Callable[[list[int]], str], start: int
    ) -> list[list[int]]:
        """Rows of tokens that grow by one token per step, until every row contains a stop string.

        `text_of` decodes a row; the first `start` characters of its text are not searched.
        """
        rows: list[list[int]] = []
        stopped: set[int] = set()
        for step in steps:
            rows = rows or [[] for _ in step]
            for number, token in enumerate(step):
                if number in stopped:
                    continue
                rows[number].append(token)
                if self.find(text_of(rows[number]), start) is not None:
                    stopped.add(number)
            if len(stopped) == len(rows):
                break
        return rows
