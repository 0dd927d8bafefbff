"""The bits of the residue of a text, computed from counts without a coder (see `residue.py` and `adaptive.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chainrule.text.coding.adaptive import AdaptiveChoice
from chainrule.text.coding.line_spaces import line_spaces
from chainrule.text.coding.residue import COUNT_BYTES, Frame, Models, UnitSplitter, unknown_parts
from chainrule.text.tokenizers.base import Ids, Tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE, VocabularyTokenizer
from chainrule.text.tokenizers.word import WordTokenizer

if TYPE_CHECKING:
    from chainrule.text.tokenizers.word_table import Words

LITERAL = UNK_PIECE.encode()

MOST_UNSPELLED = 4096
"""Texts that a meter keeps to compute their bits together."""


class ResidueMeter:
    """Counts the bits that a `ResidueWriter` would write, and the unknown tokens that are not a literal `<unk>`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.oov = 0
        self._tokenizer = tokenizer
        self._models = Models(tokenizer)
        self._units = UnitSplitter(tokenizer.eos)
        self._tail = ""  # the unfinished line at the end of the last block
        self._spelled = 0.0  # bits
        self._unspelled: list[bytes] = []  # texts whose bits are not in it yet: many at once are faster

    @property
    def bits(self) -> float:
        """The bits of everything added so far; complete after `finish`."""
        self._spell_all()
        return self._models.bits + self._spelled

    def add(self, block: str, ids: Ids, words: Words | None = None) -> None:
        """Add a block of the text, its ids, and its words where `encode_words` found them."""
        tokenizer = self._tokenizer
        if tokenizer.residue_kind == "lines":
            self.oov += int(np.count_nonzero(ids == tokenizer.unk)) if tokenizer.unk is not None else 0
            for text, line_ids, more in self._units.add(block, ids):
                self._count_line(text, line_ids, more)
        elif isinstance(tokenizer, VocabularyTokenizer) and (ids == tokenizer.unk).any():
            self._count_unknowns(tokenizer, block, ids, words)
        if isinstance(tokenizer, WordTokenizer):
            self._count_spacing(tokenizer, block, words)

    def finish(self) -> None:
        """End the text."""
        if self._tokenizer.residue_kind == "lines":
            self._count_line(*self._units.finish())
        elif isinstance(self._tokenizer, WordTokenizer):
            self._count_frame(self._tokenizer, self._tail, more=False)
            self._tail = ""

    def _count_unknowns(self, tokenizer: VocabularyTokenizer, block: str, ids: Ids, words: Words | None) -> None:
        if words is None:
            unknown = [part.encode() for part in unknown_parts(tokenizer, block, ids)]
        else:
            unknown = words.where(ids == tokenizer.unk)
        spelled = [part for part in unknown if part != LITERAL]
        self.oov += len(spelled)
        self._models.literal.add(True, len(unknown) - len(spelled))
        self._models.literal.add(False, len(spelled))
        self._spell(spelled)

    def _count_spacing(self, tokenizer: WordTokenizer, block: str, words: Words | None) -> None:
        if self._tail.strip():
            self._count_frame(tokenizer, self._tail, more=True)
            self._tail = ""
        text = self._tail + block
        cut = text.rfind("\n") + 1
        lines, self._tail = text[:cut], text[cut:]
        if not lines:
            return
        spaces = line_spaces(lines, words if lines == block else None)
        if spaces is None:
            self._count_odd_lines(tokenizer, lines[:-1].split("\n"))
            return
        for (lead, regular, trail), times in spaces.frames.items():
            self._add_frames(self._models.full, Frame(" " * lead, regular, " " * trail), times)
        for size, times in spaces.blank.items():
            self._add_frames(self._models.empty, Frame(" " * size), times)
        self._add_gaps({" " * size: times for size, times in spaces.gaps.items()})

    def _count_odd_lines(self, tokenizer: WordTokenizer, lines: Sequence[str]) -> None:
        """Count lines with any white space; the frames of those with single spaces between their words together."""
        frames: Counter[tuple[int, int]] = Counter()  # by spaces before the first word and after the last
        for line in lines:
            core = line.strip(" ")
            if core and core == " ".join(core.split()):
                lead = len(line) - len(line.lstrip(" "))
                frames[lead, len(line) - len(core) - lead] += 1
            else:
                self._count_frame(tokenizer, line, more=False)
        for (lead, trail), times in frames.items():
            self._add_frames(self._models.full, Frame(" " * lead, True, " " * trail), times)

    def _add_frames(self, known: AdaptiveChoice[Frame], frame: Frame, times: int) -> None:
        new = known.add(frame, times)
        self._spelled += 2 * new
        self._spell([frame.lead.encode(), frame.trail.encode()] * new)

    def _count_frame(self, tokenizer: WordTokenizer, text: str, more: bool) -> None:
        lead, inner, trail = tokenizer.spacing(text)
        self._add_frames(self._models.frames(len(text.strip())), Frame(lead, inner is None, trail, more), 1)
        self._spelled += 8 * COUNT_BYTES * more
        self._add_gaps(Counter(inner or ()))

    def _add_gaps(self, gaps: Mapping[str, int]) -> None:
        for gap, times in gaps.items():
            self._spell([gap.encode()] * self._models.gaps.add(gap, times))

    def _count_line(self, text: str, ids: list[int], more: bool) -> None:
        regular = self._tokenizer.decode(ids) == text
        if self._models.frames(len(ids)).add(Frame(regular=regular, more=more)):
            self._spelled += 2
            self._spell([b"", b""])
        self._spelled += 8 * COUNT_BYTES * more
        if not regular:
            self._spell([text.encode()])

    def _spell(self, texts: Sequence[bytes]) -> None:
        self._unspelled += texts
        if len(self._unspelled) > MOST_UNSPELLED:
            self._spell_all()

    def _spell_all(self) -> None:
        if self._unspelled:
            self._spelled += float(self._tokenizer.speller.bits_of(self._unspelled).sum())
            self._unspelled = []
