"""Tokenisers that split a line and look the parts up in a vocabulary: words, characters, Chinese words.

Ids: 0 `<unk>`, 1 `<eos>`, then the parts by descending frequency.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, Self

from chainrule.errors import ConfigError
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.text.tokenizers.spans import Span

UNK, EOS = 0, 1
UNK_PIECE, EOS_PIECE = "<unk>", "<eos>"
MAX_TYPES = 4_000_000
"""Different parts that are counted at once when a tokeniser is fitted; beyond them the rarest are dropped."""


class _Index(dict[str, int]):
    """Part to id; a missing part is unknown. Plain indexing is faster than `get` with a default."""

    def __missing__(self, part: str) -> int:
        return UNK


class VocabularyTokenizer(Tokenizer):
    """A way to split a line, and a list of the parts that have ids."""

    eos = EOS
    unk = UNK
    exact = False
    drops_rare = True

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = list(parts)
        self.vocab_size = len(self.parts) + 2
        self._index = _Index(zip(self.parts, range(2, self.vocab_size), strict=True))
        self._index[UNK_PIECE] = UNK
        self._pieces = [UNK_PIECE, EOS_PIECE, *self.parts]

    @classmethod
    @abstractmethod
    def count(cls, texts: Texts, *, min_count: int = 1, max_types: int = MAX_TYPES, **options: Any) -> Counter[str]:
        """Occurrences of each part of a text; parts rarer than `min_count` may be missing."""

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        counts = cls.count(texts, min_count=min_count, **options)
        return cls(most_frequent(counts, vocab_size=vocab_size, min_count=min_count), **options)

    @abstractmethod
    def split(self, line: str) -> list[str]:
        """The parts of a line, one for each id."""

    @abstractmethod
    def join(self, parts: Sequence[str]) -> str:
        """The line that usually gives these parts."""

    def encode(self, line: str) -> list[int]:
        return list(map(self._index.__getitem__, self.split(line)))

    def decode(self, ids: Iterable[int]) -> str:
        return "\n".join(self.join([self._pieces[token] for token in line]) for line in self.lines_of(ids))

    def piece(self, token: int) -> str:
        return self._pieces[token]

    def written_pieces(self, line: str) -> list[str]:
        return self.split(line)

    def line_spans(self, line: str) -> list[Span]:
        ends = list(accumulate(map(len, self.split(line))))
        return list(zip([0, *ends], ends, strict=False))

    def to_id(self, piece: str) -> int | None:
        return self._index.get(piece)

    def types(self) -> Iterator[bytes]:
        return (part.encode() for part in self.parts)

    def state(self) -> dict[str, Any]:
        return {"pieces": self.parts}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        options = {name: value for name, value in state.items() if name not in ("kind", "version", "files", "pieces")}
        pieces = state["pieces"]
        if not isinstance(pieces, list) or set(map(type, pieces)) - {str} or "" in pieces:
            raise ValueError("its pieces are not all words")
        return cls(pieces, **options)


def most_frequent(counts: Counter[str], *, vocab_size: int | None, min_count: int) -> list[str]:
    """The parts to keep, by descending count, then alphabetically; `vocab_size` includes `<unk>` and `<eos>`."""
    if min_count < 1:
        raise ConfigError(f"got a min_count of {min_count}: expected 1 or more; 1 keeps every word.")
    if vocab_size is not None and vocab_size < 2:
        raise ConfigError(f"got a vocab_size of {vocab_size}: expected 2 or more, as <unk> and <eos> take two.")
    counts.pop(UNK_PIECE, None)
    by_count: dict[int, list[str]] = {}  # sorting the parts of each count is faster than one sort of pairs
    for part, count in counts.items():
        if count >= min_count:
            by_count.setdefault(count, []).append(part)
    kept = chain.from_iterable(sorted(by_count[count]) for count in sorted(by_count, reverse=True))
    return list(islice(kept, None if vocab_size is None else vocab_size - 2))


def count_parts(parts: Iterable[Iterable[str]], max_types: int = MAX_TYPES) -> Counter[str]:
    """Occurrences of each part; beyond `max_types` different parts the rarest are dropped, to bound the memory."""
    counts: Counter[str] = Counter()
    for batch in parts:
        counts.update(batch)
        least = 1
        while len(counts) > max_types:
            least += 1
            counts = Counter({part: count for part, count in counts.items() if count >= least})
    return counts


def refuse_min_count(kind: str, min_count: int) -> None:
    """Raise for a `min_count` given to a kind without a list of words."""
    if min_count != 1:
        raise ConfigError(f"got a min_count of {min_count}: the {kind} tokeniser leaves nothing out; leave it at 1.")


def refuse_options(kind: str, options: dict[str, Any]) -> None:
    """Raise for options that the kind does not have."""
    if options:
        raise ConfigError(f"the {kind} tokeniser has no option '{next(iter(options))}'; leave it out.")
