"""The residue of a text, which is what its tokens do not determine, and the code for it.

Tokens and residue together restore the exact bytes, so that bits per byte is the length of a real code. The residue
contains
- the spelling of each unknown token: a flag for a literal `<unk>`, else the word by the speller;
- the white space of lines of words: per line a frame (the white space before the first word and after the last, and
  whether all gaps between words are the usual ones), and for an irregular line every gap;
- for a tokeniser that loses anything else, per line whether its tokens decode to it, and if not, the line itself.
A tokeniser that loses nothing has no residue, which costs exactly 0 bits.

Frames, gaps and flags are coded adaptively: a text of regular lines costs a few bytes in total. The unit is a line, or
the part of a long line in one block; the frame of such a part states that more follows, and the number of its tokens.
The last unit of a text is what follows its last newline, usually nothing.

    writer = ResidueWriter(tokenizer, RangeEncoder())
    for block in tokenizer.blocks(texts):
        writer.add(block, tokenizer.encode_block(block))
    writer.finish()

`ResidueMeter` of `residue_meter.py` has the same two methods and computes `bits` from counts, without a coder;
`read_residue(tokenizer, ids, RangeDecoder(data))` restores the bytes of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from chainrule.errors import DataError
from chainrule.text.coding.adaptive import AdaptiveChoice, AdaptiveFlag
from chainrule.text.coding.coders import Coder
from chainrule.text.tokenizers.base import Ids, Tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE, VocabularyTokenizer
from chainrule.text.tokenizers.word import Spacing, WordTokenizer

COUNT_BYTES = 4


class Frame(NamedTuple):
    """What is coded first of a unit. With the tokens it determines a regular unit, except for unknown words."""

    lead: str = ""
    regular: bool = True
    trail: str = ""
    more: bool = False  # the line continues in another unit


PLAIN = Frame()


class Unit(NamedTuple):
    """The residue of a line, or of a part of one."""

    tokens: int
    frame: Frame = PLAIN
    gaps: tuple[str, ...] = ()  # of an irregular unit
    spellings: tuple[str, ...] = ()  # one for each unknown token, `<unk>` for a literal one
    line: str = ""  # the text of a unit that its tokens do not decode to


class Models:
    """The adaptive models of one text; each knows the usual value from the start."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.empty: AdaptiveChoice[Frame] = AdaptiveChoice([PLAIN])  # of units without tokens
        self.full: AdaptiveChoice[Frame] = AdaptiveChoice([PLAIN])
        self.gaps: AdaptiveChoice[str] = AdaptiveChoice([" "])
        self.literal = AdaptiveFlag()

    def frames(self, tokens: int) -> AdaptiveChoice[Frame]:
        return self.full if tokens else self.empty

    @property
    def bits(self) -> float:
        return self.empty.bits + self.full.bits + self.gaps.bits + self.literal.bits


class _UnitCoder(Models):
    """Writes units with a coder, or reads them if None is given."""

    def unit(self, coder: Coder, ids: Sequence[int], given: Unit | None) -> Unit:
        """Code a unit; `ids` are those of the unit, or when reading the remaining ones of the line."""
        frame, tokens = PLAIN, len(ids)
        if self.tokenizer.residue_kind in ("spacing", "lines"):
            frame = self.frames(tokens).code(coder, given and given.frame, self._spell_frame)
            if frame.more:
                tokens = _code_count(coder, given and given.tokens, limit=len(ids))
        if self.tokenizer.residue_kind == "lines":
            line = "" if frame.regular else self._spell(coder, given and given.line)
            return Unit(tokens, frame, line=line)
        unknown = sum(token == self.tokenizer.unk for token in ids[:tokens])
        spellings = tuple(self._spell_unknown(coder, given and given.spellings[n]) for n in range(unknown))
        unit = Unit(tokens, frame, spellings=spellings)
        return unit if frame.regular else unit._replace(gaps=self._code_gaps(coder, ids[:tokens], unit, given))

    def _code_gaps(self, coder: Coder, ids: Sequence[int], unit: Unit, given: Unit | None) -> tuple[str, ...]:
        """Gaps come after the spellings, since these can determine whether there is a gap before a token."""
        assert isinstance(self.tokenizer, WordTokenizer)
        number = self.tokenizer.gaps(_parts(self.tokenizer, ids, unit.spellings))
        return tuple(self.gaps.code(coder, given and given.gaps[n], self._spell) for n in range(number))

    def _spell_unknown(self, coder: Coder, word: str | None) -> str:
        if self.literal.code(coder, None if word is None else word == UNK_PIECE):
            return UNK_PIECE
        return self._spell(coder, word)

    def _spell_frame(self, coder: Coder, frame: Frame | None) -> Frame:
        lead = self._spell(coder, None if frame is None else frame.lead)
        trail = self._spell(coder, None if frame is None else frame.trail)
        flags = coder.code_uniform(4, None if frame is None else 2 * frame.regular + frame.more)
        return Frame(lead, bool(flags & 2), trail, bool(flags & 1))

    def _spell(self, coder: Coder, text: str | None) -> str:
        spelled = self.tokenizer.speller.code(coder, None if text is None else text.encode())
        try:
            return spelled.decode()
        except UnicodeDecodeError as error:
            raise _damaged() from error


def _code_count(coder: Coder, count: int | None, limit: int) -> int:
    """Code a number of tokens in bytes of equal weight."""
    given: Iterable[int | None] = [None] * COUNT_BYTES if count is None else count.to_bytes(COUNT_BYTES)
    found = int.from_bytes(bytes(coder.code_uniform(256, byte) for byte in given))
    if found > limit:
        raise _damaged()
    return found


def _damaged() -> DataError:
    return DataError("the residue does not fit the tokens: expected what was written with them; the file is damaged.")


class UnitSplitter:
    """Splits blocks and their ids into units. A part of a line without tokens is joined to the next unit."""

    def __init__(self, eos: int) -> None:
        self._eos = eos
        self._text = ""
        self._ids: list[int] = []

    def add(self, block: str, ids: Ids) -> Iterator[tuple[str, list[int], bool]]:
        """The text of each unit, its ids, and whether the line continues."""
        if self._ids:
            yield self._take(more=True)
        lines = block.split("\n")
        ends = np.flatnonzero(ids == self._eos).tolist()
        starts = [0, *(end + 1 for end in ends)]
        for line, start, end in zip(lines, starts, [*ends, len(ids)], strict=True):
            if start:
                yield self._take(more=False)
            self._text += line
            self._ids = ids[start:end].tolist()

    def finish(self) -> tuple[str, list[int], bool]:
        return self._take(more=False)

    def _take(self, more: bool) -> tuple[str, list[int], bool]:
        unit = self._text, self._ids, more
        self._text, self._ids = "", []
        return unit


class ResidueWriter:
    """Codes the residue of a text, block by block."""

    def __init__(self, tokenizer: Tokenizer, coder: Coder) -> None:
        self._tokenizer = tokenizer
        self._coder = coder
        self._unit_coder = _UnitCoder(tokenizer)
        self._units = UnitSplitter(tokenizer.eos)

    def add(self, block: str, ids: Ids) -> None:
        """Add a block of the text, and its ids as returned by `encode_block`."""
        if self._tokenizer.residue_kind == "nothing":
            return
        if self._tokenizer.residue_kind == "unknowns" and not (ids == self._tokenizer.unk).any():
            return
        for text, line_ids, more in self._units.add(block, ids):
            self._code(text, line_ids, more)
        if self._tokenizer.residue_kind == "unknowns":  # without frames, nothing waits for the end of a line
            self._code(*self._units.finish())

    def finish(self) -> None:
        """End the text."""
        if self._tokenizer.residue_kind in ("spacing", "lines"):
            self._code(*self._units.finish())

    def _code(self, text: str, ids: list[int], more: bool) -> None:
        self._unit_coder.unit(self._coder, ids, describe(self._tokenizer, text, ids, more))


def describe(tokenizer: Tokenizer, text: str, ids: Sequence[int], more: bool = False) -> Unit:
    """The residue of a line, or part of one, given its text and ids."""
    if not isinstance(tokenizer, VocabularyTokenizer):
        regular = tokenizer.decode(ids) == text
        return Unit(len(ids), Frame(regular=regular, more=more), line="" if regular else text)
    parts = tokenizer.split(text)
    spellings = tuple(part for part, token in zip(parts, ids, strict=True) if token == tokenizer.unk)
    if not isinstance(tokenizer, WordTokenizer):
        return Unit(len(ids), spellings=spellings)
    lead, inner, trail = tokenizer.spacing(text)
    return Unit(len(ids), Frame(lead, inner is None, trail, more), inner or (), spellings)


def read_residue(tokenizer: Tokenizer, ids: Iterable[int], coder: Coder) -> Iterator[bytes]:
    """The bytes of a text, line by line, from its ids and a decoder of its residue."""
    unit_coder, first = _UnitCoder(tokenizer), True
    for line in tokenizer.lines_of(ids):
        if not first:
            yield b"\n"
        first = False
        if tokenizer.residue_kind == "nothing":
            yield tokenizer.decode_bytes(line)
            continue
        more = True
        while more:
            unit = unit_coder.unit(coder, line, None)
            yield _restore(tokenizer, line[: unit.tokens], unit).encode()
            line, more = line[unit.tokens :], unit.frame.more


def _restore(tokenizer: Tokenizer, ids: Sequence[int], unit: Unit) -> str:
    """The inverse of `describe`."""
    if not isinstance(tokenizer, VocabularyTokenizer):
        return tokenizer.decode(ids) if unit.frame.regular else unit.line
    parts = _parts(tokenizer, ids, unit.spellings)
    if not isinstance(tokenizer, WordTokenizer):
        return tokenizer.join(parts)
    inner = None if unit.frame.regular else unit.gaps
    return tokenizer.restore(parts, Spacing(unit.frame.lead, inner, unit.frame.trail))


def _parts(tokenizer: Tokenizer, ids: Sequence[int], spellings: Iterable[str]) -> list[str]:
    """The parts of ids, with the spellings of unknown ones."""
    spelled = iter(spellings)
    return [next(spelled) if token == tokenizer.unk else tokenizer.piece(token) for token in ids]


def unknown_parts(tokenizer: VocabularyTokenizer, block: str, ids: Ids) -> list[str]:
    """The parts of a block without an id; only lines that have any are split."""
    lines, ends = block.split("\n"), np.flatnonzero(ids == tokenizer.eos)
    found = np.flatnonzero(ids == tokenizer.unk)
    of_line = np.searchsorted(ends, found)
    starts = np.concatenate([[0], ends + 1])[of_line]
    parts, current, unknown = [""], -1, []
    for line, place in zip(of_line.tolist(), (found - starts).tolist(), strict=True):
        if line != current:
            parts, current = tokenizer.split(lines[line]), line
        unknown.append(parts[place])
    return unknown
