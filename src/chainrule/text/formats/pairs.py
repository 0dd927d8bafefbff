"""Pairs of lines: two parallel files, or one file of tab-separated or JSON lines.

Pairs are two `Texts`, source and target, of which lines with the same number belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chainrule.errors import DataError
from chainrule.text.readers import Texts, open_texts
from chainrule.text.sources import JSON_SUFFIXES, TextSource, file_chunks, kind_of, lines_of, record_text
from chainrule.text.splitting import some_lines

TAB_SUFFIX = ".tsv"


class Pairs(NamedTuple):
    """Sources and targets, line by line."""

    source: Texts
    target: Texts

    @property
    def name(self) -> str:
        return self.source.name if self.source.name == self.target.name else f"{self.source.name}, {self.target.name}"


def hold_pairs(path: str | Path) -> bool:
    """Whether one file holds both sides, judged by its name."""
    return kind_of(Path(path)) in (TAB_SUFFIX, *JSON_SUFFIXES)


def open_pairs(paths: Sequence[str | Path], *, fields: tuple[str, str] = ("source", "target")) -> Pairs:
    """The pairs of two parallel files, or of files that hold both sides.

    A line of a .tsv is source, tab, target; a line of a .jsonl an object with both `fields`.
    """
    if paths and all(hold_pairs(path) for path in paths):
        for path in paths:
            open_texts([path])  # raises if the file is missing
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
    lines, skips_blank = lines_of(file_chunks(path)), kind_of(path) != TAB_SUFFIX  # between JSON records
    current = next(lines)
    for number, following in enumerate(lines, start=1):
        if not (skips_blank and not current.strip()):
            yield column(f"{path}, line {number}", current, side)
        current = following
    if current.strip() if skips_blank else current:  # the last line lacks its newline
        yield column(f"{path}, last line", current, side)


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
    """The pairs with `prefix` before every source that is not empty."""
    before = prefix.encode()

    def chunks() -> Iterator[bytes]:
        inside_line = False
        for block in pairs.source.blocks():
            *lines, rest = block.data.split(b"\n")
            parts = [*lines, rest] if rest else lines
            continued = [number == 0 and inside_line for number in range(len(parts))]
            inside_line = bool(rest)
            parts = [before + part if part and not more else part for part, more in zip(parts, continued, strict=True)]
            yield b"\n".join(parts) + b"\n" * (not rest)

    return Pairs(Texts([TextSource(pairs.source.name, chunks)]), pairs.target)


def part_of(pairs: Pairs, begin: int, end: int | None = None) -> Pairs:
    """The pairs from index `begin` to before `end`."""
    return Pairs(*(some_lines(text, begin, end) for text in pairs))
