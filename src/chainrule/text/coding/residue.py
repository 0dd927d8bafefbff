"""What tokens do not tell of a text, and the code for it, so that bits per byte is the length of a real code.

Tokens and residue together give the exact bytes back. The residue holds
- how each unknown token is spelled: a flag that says whether it is a literal `<unk>`, else the word by the speller;
- the white space of lines of words: per line a frame (before the first word, after the last, and whether each gap
  between is the usual one), and for an unusual line every gap;
- for a tokeniser that loses anything else, per line whether its tokens decode to it, and if not, the line itself.
A tokeniser that loses nothing has no residue, and it costs exactly 0 bits.

Frames, gaps and flags are coded adaptively: a text of regular lines pays a few bytes in all. The unit is a line, or
the part of a long one that a block held; such a part says in its frame that more follows, and how many tokens it has.
What follows the last newline of a text is its last unit, usually an empty one.

    writer = ResidueWriter(tokenizer, RangeEncoder())
    for block in tokenizer.blocks(texts):
        writer.add(block, tokenizer.encode_block(block))
    writer.finish()

`ResidueMeter` has the same two methods and gives `bits` without a coder, from counts (see `adaptive`);
`read_residue(tokenizer, ids, RangeDecoder(data))` gives the bytes of the text back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from chainrule.errors import DataError
from chainrule.text.coding.adaptive import Choice, Flag
from chainrule.text.coding.coders import Coder
from chainrule.text.tokenizers.base import Ids, Tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE, VocabularyTokenizer
from chainrule.text.tokenizers.word import Spacing, WordTokenizer

COUNT_BYTES = 4
ODD_SPACES = "\t\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class Frame(NamedTuple):
    """What is coded of a unit first. In a regular one the tokens and this tell all but the unknown words."""

    lead: str = ""
    regular: bool = True
    trail: str = ""
    more: bool = False  # the line goes on in another unit


PLAIN = Frame()


class Unit(NamedTuple):
    """What the ids of a line, or of a part of one, do not tell."""

    tokens: int
    frame: Frame = PLAIN
    gaps: tuple[str, ...] = ()  # of a unit with unusual white space
    spellings: tuple[str, ...] = ()  # one for each unknown token, `<unk>` for a literal one
    line: str = ""  # of a unit that its tokens do not decode to


class _Models:
    """The adaptive models of one text; each starts from the usual value."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.empty: Choice[Frame] = Choice([PLAIN])  # of units without tokens: the number of tokens is known
        self.full: Choice[Frame] = Choice([PLAIN])
        self.gaps: Choice[str] = Choice([" "])
        self.literal = Flag()

    def frames(self, tokens: int) -> Choice[Frame]:
        return self.full if tokens else self.empty

    @property
    def bits(self) -> float:
        return self.empty.bits + self.full.bits + self.gaps.bits + self.literal.bits


class _Walk(_Models):
    """Codes units through a coder; given None, reads them."""

    def unit(self, coder: Coder, ids: Sequence[int], given: Unit | None) -> Unit:
        """`ids` are those of the unit, or when reading all that are left of the line."""
        frame, tokens = PLAIN, len(ids)
        if self.tokenizer.remainder in ("spacing", "lines"):
            frame = self.frames(tokens).code(coder, given and given.frame, self._spell_frame)
            if frame.more:
                tokens = _code_count(coder, given and given.tokens, limit=len(ids))
        if self.tokenizer.remainder == "lines":
            line = "" if frame.regular else self._spell(coder, given and given.line)
            return Unit(tokens, frame, line=line)
        unknown = sum(token == self.tokenizer.unk for token in ids[:tokens])
        spellings = tuple(self._spell_unknown(coder, given and given.spellings[n]) for n in range(unknown))
        unit = Unit(tokens, frame, spellings=spellings)
        return unit if frame.regular else unit._replace(gaps=self._code_gaps(coder, ids[:tokens], unit, given))

    def _code_gaps(self, coder: Coder, ids: Sequence[int], unit: Unit, given: Unit | None) -> tuple[str, ...]:
        """After the spellings, for these may tell whether a token has a gap before it."""
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
    """A number of tokens, in bytes of equal weight."""
    given: Iterable[int | None] = [None] * COUNT_BYTES if count is None else count.to_bytes(COUNT_BYTES)
    found = int.from_bytes(bytes(coder.code_uniform(256, byte) for byte in given))
    if found > limit:
        raise _damaged()
    return found


def _damaged() -> DataError:
    return DataError("the residue does not fit the tokens: expected what was written with them; the file is damaged.")


class _Units:
    """Cuts blocks and their ids into units. A cut line's part without tokens is kept for the next unit."""

    def __init__(self, eos: int) -> None:
        self._eos = eos
        self._text = ""
        self._ids: list[int] = []

    def add(self, block: str, ids: Ids) -> Iterator[tuple[str, list[int], bool]]:
        """The text of each unit, its ids, and whether the line goes on."""
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
        self._walk = _Walk(tokenizer)
        self._units = _Units(tokenizer.eos)

    def add(self, block: str, ids: Ids) -> None:
        """A block of the text, and its ids as `encode_block` gives them."""
        if self._tokenizer.remainder == "nothing":
            return
        if self._tokenizer.remainder == "unknowns" and not (ids == self._tokenizer.unk).any():
            return
        for text, line_ids, more in self._units.add(block, ids):
            self._code(text, line_ids, more)
        if self._tokenizer.remainder == "unknowns":  # there are no frames, so nothing waits for the end of a line
            self._code(*self._units.finish())

    def finish(self) -> None:
        """The text has ended."""
        if self._tokenizer.remainder in ("spacing", "lines"):
            self._code(*self._units.finish())

    def _code(self, text: str, ids: list[int], more: bool) -> None:
        self._walk.unit(self._coder, ids, describe(self._tokenizer, text, ids, more))


def describe(tokenizer: Tokenizer, text: str, ids: Sequence[int], more: bool = False) -> Unit:
    """What `ids` do not tell of the line or part of a line that they stand for."""
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
    """The bytes of a text from its ids and the coder that reads its residue, line by line."""
    walk, first = _Walk(tokenizer), True
    for line in tokenizer.lines_of(ids):
        if not first:
            yield b"\n"
        first = False
        if tokenizer.remainder == "nothing":
            yield tokenizer.decode_bytes(line)
            continue
        more = True
        while more:
            unit = walk.unit(coder, line, None)
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
    """What ids stand for, the unknown ones by their spellings."""
    spelled = iter(spellings)
    return [next(spelled) if token == tokenizer.unk else tokenizer.piece(token) for token in ids]


class ResidueMeter:
    """The bits that a `ResidueWriter` would write, and the number of unknown tokens that are no literal `<unk>`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.oov = 0
        self._tokenizer = tokenizer
        self._models = _Models(tokenizer)
        self._units = _Units(tokenizer.eos)
        self._tail = ""  # the line that the last block did not end, if it has white space to tell
        self._spelled = 0.0

    @property
    def bits(self) -> float:
        """Of everything added so far; complete after `finish`."""
        return self._models.bits + self._spelled

    def add(self, block: str, ids: Ids) -> None:
        """A block of the text, and its ids as `encode_block` gives them."""
        tokenizer = self._tokenizer
        if tokenizer.remainder == "lines":
            self.oov += int(np.count_nonzero(ids == tokenizer.unk)) if tokenizer.unk is not None else 0
            for text, line_ids, more in self._units.add(block, ids):
                self._count_line(text, line_ids, more)
        elif isinstance(tokenizer, VocabularyTokenizer) and (ids == tokenizer.unk).any():
            self._count_unknowns(tokenizer, block, ids)
        if isinstance(tokenizer, WordTokenizer):
            self._count_spacing(tokenizer, block)

    def finish(self) -> None:
        """The text has ended."""
        if self._tokenizer.remainder == "lines":
            self._count_line(*self._units.finish())
        elif isinstance(self._tokenizer, WordTokenizer):
            self._count_frame(self._tokenizer, self._tail, more=False)
            self._tail = ""

    def _count_unknowns(self, tokenizer: VocabularyTokenizer, block: str, ids: Ids) -> None:
        unknown = _unknown_parts(tokenizer, block, ids)
        words = [part for part in unknown if part != UNK_PIECE]
        self.oov += len(words)
        self._models.literal.add(True, len(unknown) - len(words))
        self._models.literal.add(False, len(words))
        self._spell(words)

    def _count_spacing(self, tokenizer: WordTokenizer, block: str) -> None:
        if self._tail.strip():
            self._count_frame(tokenizer, self._tail, more=True)
            self._tail = ""
        text = self._tail + block
        *lines, self._tail = text.split("\n")
        single, plain, empty = _single_spaced(text), 0, 0
        for line in lines:
            # Most lines are words with single spaces between: these are only counted.
            if not line:
                empty += 1
            elif (line[0] != " " and line[-1] != " ") if single else line == " ".join(line.split()):
                plain += 1
            else:
                self._count_frame(tokenizer, line, more=False)
        self._models.full.add(PLAIN, plain)
        self._models.empty.add(PLAIN, empty)

    def _count_frame(self, tokenizer: WordTokenizer, text: str, more: bool) -> None:
        lead, inner, trail = tokenizer.spacing(text)
        frames = self._models.frames(len(text.strip()))
        if frames.add(Frame(lead, inner is None, trail, more)):
            self._spelled += 2
            self._spell([lead, trail])
        self._spelled += 8 * COUNT_BYTES * more
        self._spell([gap for gap in inner or () if self._models.gaps.add(gap)])

    def _count_line(self, text: str, ids: list[int], more: bool) -> None:
        regular = self._tokenizer.decode(ids) == text
        if self._models.frames(len(ids)).add(Frame(regular=regular, more=more)):
            self._spelled += 2
            self._spell(["", ""])
        self._spelled += 8 * COUNT_BYTES * more
        if not regular:
            self._spell([text])

    def _spell(self, texts: Sequence[str]) -> None:
        if texts:
            self._spelled += float(self._tokenizer.speller.bits_of([text.encode() for text in texts]).sum())


def _single_spaced(text: str) -> bool:
    """Whether all white space of a text is newlines and single spaces. Many searches for one sign are quick."""
    return "  " not in text and not any(space in text for space in ODD_SPACES)


def _unknown_parts(tokenizer: VocabularyTokenizer, block: str, ids: Ids) -> list[str]:
    """The parts of a block that have no id, splitting only the lines that they are in."""
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
