"""Pairs of lines: two parallel files, or one of tab-separated or JSON lines.

A pair of texts is two `Texts` whose lines belong together by their number, so everything that reads a text reads either
side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chainrule.errors import DataError
from chainrule.text.readers import Texts, open_texts
from chainrule.text.sources import JSON_SUFFIXES, file_chunks, kind_of, lines_of, record_text
from chainrule.text.sources import Source as TextSource
from chainrule.text.splitting import some_lines

TAB_SUFFIX = ".tsv"


class Pairs(NamedTuple):
    """A source and a target, line by line."""

    source: Texts
    target: Texts

    @property
    def name(self) -> str:
        return self.source.name if self.source.name == self.target.name else f"{self.source.name}, {self.target.name}"


def hold_pairs(path: str | Path) -> bool:
    """Whether one file holds both sides, by its name."""
    return kind_of(Path(path)) in (TAB_SUFFIX, *JSON_SUFFIXES)


def open_pairs(paths: Sequence[str | Path], *, fields: tuple[str, str] = ("source", "target")) -> Pairs:
    """The pairs of two parallel files, or of files that hold both sides.

    A line of a .tsv is source, tab, target; a line of a .jsonl an object with both `fields`.
    """
    if paths and all(hold_pairs(path) for path in paths):
        for path in paths:
            open_texts([path])  # which says so if it is not there
        source, target = (Texts([_side(Path(path), side, fields) for path in paths]) for side in (0, 1))
        return Pairs(source, target)
    if len(paths) != 2:
        raise DataError(
            f"got {len(paths)} file(s) for pairs of lines: expected two, source then target, or one .tsv or .jsonl "
            "with both; name them."
        )
    return Pairs(open_texts(paths[:1]), open_texts(paths[1:]))


def _side(path: Path, side: int, fields: tuple[str, str]) -> TextSource:
    """The source (0) or target (1) of the pairs in one file."""
    column = _tab_column if kind_of(path) == TAB_SUFFIX else _json_field(fields)
    return TextSource(str(path), lambda: _column(path, side, column))


def _column(path: Path, side: int, column: Callable[[str, bytes, int], bytes]) -> Iterator[bytes]:
    lines, skips = lines_of(file_chunks(path)), kind_of(path) != TAB_SUFFIX  # blank lines between JSON records
    ahead = next(lines)
    for number, line in enumerate(lines, start=1):
        if not (skips and not ahead.strip()):
            yield column(f"{path}, line {number}", ahead, side)
        ahead = line
    if ahead.strip() if skips else ahead:  # the last line lacks its newline
        yield column(f"{path}, last line", ahead, side)


def _tab_column(place: str, line: bytes, side: int) -> bytes:
    parts = line.rstrip(b"\r").split(b"\t")
    if len(parts) < 2:
        raise DataError(f"{place}: no tab in it; expected source, tab, target; repair the line or leave it out.")
    return parts[side] + b"\n"


def _json_field(fields: tuple[str, str]) -> Callable[[str, bytes, int], bytes]:
    def column(place: str, line: bytes, side: int) -> bytes:
        option = f"--set data.{('source', 'target')[side]}_field=NAME"
        return record_text(place, line, fields[side], option)[:-1].replace(b"\n", b" ") + b"\n"

    return column


def prefixed(pairs: Pairs, prefix: str) -> Pairs:
    """The pairs with some words before every source; one that is empty stays empty."""
    before = prefix.encode()

    def chunks() -> Iterator[bytes]:
        inside = False
        for block in pairs.source.blocks():
            *lines, rest = block.data.split(b"\n")
            whole = [*lines, rest] if rest else lines
            begun = [number == 0 and inside for number in range(len(whole))]
            inside = bool(rest)
            parts = [before + line if line and not part else line for line, part in zip(whole, begun, strict=True)]
            yield b"\n".join(parts) + b"\n" * (not rest)

    return Pairs(Texts([TextSource(pairs.source.name, chunks)]), pairs.target)


def part_of(pairs: Pairs, begin: int, end: int | None = None) -> Pairs:
    """The pairs from number `begin` on, before number `end`."""
    return Pairs(*(some_lines(text, begin, end) for text in pairs))
