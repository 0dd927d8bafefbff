"""What the translation of a line must contain: forced words, the entries of a glossary, and protected strings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from chainrule.decoding.phrases import Phrase
from chainrule.errors import ConfigError, DataError
from chainrule.text.protected import protected_strings
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.tokenizers import Tokenizer

Glossary = Mapping[str, str] | Sequence[tuple[str, str]] | str | Path
"""Source phrases and what they are translated as, or the path of a file of them."""


CHINESE = "\u2e80"
"""From here on, characters are those of scripts without spaces between words, nearly all."""


@dataclass(frozen=True)
class LinePhrases:
    """What the translation of a line must contain."""

    phrases: list[Phrase] = field(default_factory=list)
    protected: dict[str, int] = field(default_factory=dict)  # protected strings, and how often each occurs
    unwritable: list[str] = field(default_factory=list)  # those that take the place of <unk>, in order

    @property
    def tokens(self) -> int:
        """The number of tokens that all phrases need, at most."""
        return sum(phrase.count * max(map(len, phrase.spellings)) for phrase in self.phrases)

    @property
    def width(self) -> float:
        """The rows of a search with the phrases per row of one without them, about."""
        longest = max((len(one) for phrase in self.phrases for one in phrase.spellings), default=0)
        levels = sum(phrase.count for phrase in self.phrases)
        return 1 + levels * (2 if longest > 1 else 1)

    def within(self, limit: int) -> list[Phrase]:
        """The phrases to write in `limit` tokens: without the protected strings if these are too long."""
        return self.phrases if self.tokens <= limit else [phrase for phrase in self.phrases if not phrase.exact]


def read_glossary(path: str | Path) -> list[tuple[str, str]]:
    """The entries of a file with one `source phrase TAB target phrase` per line; empty lines are skipped."""
    entries = []
    for number, line in enumerate(lines_in(open_texts([path])), start=1):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != 2 or not all(parts):
            raise DataError(
                f"line {number} of {Path(path).name} is {line[:60]!r}; expected a source phrase, a tab and a target "
                "phrase"
            )
        entries.append((parts[0], parts[1]))
    return entries


class PhraseBook:
    """The phrases of lines, for one target tokeniser."""

    def __init__(self, tokenizer: Tokenizer, force: str | Sequence[str], glossary: Glossary, *, keep: bool) -> None:
        self.tokenizer, self.keep = tokenizer, keep
        self.force = [force] if isinstance(force, str) else list(dict.fromkeys(force))
        self.glossary = dict(read_glossary(glossary) if isinstance(glossary, str | Path) else glossary)
        for text in (*self.force, *self.glossary.values()):
            self._check(text)
        self._entries = _matcher(list(self.glossary))
        self._space = _space_token(tokenizer)

    def __bool__(self) -> bool:
        return self.keep or bool(self.force or self.glossary)

    def of(self, line: str) -> LinePhrases:
        """The phrases of a line."""
        found = [match[0] for match in self._entries.finditer(line)] if self._entries else []
        wanted = dict.fromkeys([*self.force, *(self.glossary[source] for source in found)], 1)
        protected = dict(Counter(protected_strings(line))) if self.keep else {}
        phrases = [
            Phrase(self._spellings(text), followers=self._after(text)) for text in wanted if text not in protected
        ]
        unwritable = []
        for text, count in protected.items():
            if self._writable(text):
                spellings = self._spellings(text, separate=_separate(text, line))
                followers = self._after(text) if _bounded_in(text, line) else None
                phrases.append(Phrase(spellings, count, exact=True, followers=followers))
            else:
                unwritable += [text] * count
        if unwritable and self.tokenizer.unk is not None:
            unwritable.sort(key=line.index)
            separate = all(_separate(text, line) for text in unwritable)
            phrases.append(Phrase(self._ways((self.tokenizer.unk,), separate=separate), len(unwritable)))
        return LinePhrases(phrases, protected, unwritable)

    def _spellings(self, text: str, *, separate: bool = True) -> tuple[tuple[int, ...], ...]:
        """The tokens of a text at the beginning of a line, and after a space.

        Where a space is a token of its own, a separate phrase follows one, or begins the line.
        """
        tokens = tuple(self.tokenizer.encode(text))
        inside = tuple(self.tokenizer.encode(f" {text}")) if self.tokenizer.spaces_matter else tokens
        ways = self._ways(tokens, separate=separate and text[0] < CHINESE)
        return tuple(dict.fromkeys((*ways, inside))) if inside != tokens else ways

    def _ways(self, tokens: tuple[int, ...], *, separate: bool) -> tuple[tuple[int, ...], ...]:
        if self._space is None or not separate:
            return (tokens,)
        return (self._space, *tokens), (self.tokenizer.eos, *tokens)

    def _after(self, text: str) -> frozenset[int] | None:
        """The tokens that may follow a phrase; None: all may."""
        return self._boundaries if text[-1] < CHINESE else None

    @cached_property
    def _boundaries(self) -> frozenset[int] | None:
        """The tokens that continue no word, the end of the text included; None: tokens do not mark words."""
        tokenizer, word = self.tokenizer, self.tokenizer.encode("a")
        length, size = len(tokenizer.decode(word)), tokenizer.vocab_size
        ends = {token for token in range(size) if not _spaced(tokenizer.decode([*word, token])[length : length + 1])}
        if len(ends) == size or not ends - {tokenizer.eos, tokenizer.unk}:
            return None
        return frozenset(ends | {tokenizer.eos})

    def _writable(self, text: str) -> bool:
        tokens = self.tokenizer.encode(text)
        return self.tokenizer.unk not in tokens and self.tokenizer.decode(tokens).strip() == text.strip()

    def _check(self, text: str) -> None:
        if not text.strip():
            raise ConfigError("a forced phrase is empty; give at least one word")
        if not self._writable(text):
            written = self.tokenizer.decode(self.tokenizer.encode(text)).strip()
            raise ConfigError(
                f"the phrase '{text}' cannot be forced: the tokens of this run write it as '{written}'; give words "
                "that it can write, or train with a subword tokeniser"
            )


def _space_token(tokenizer: Tokenizer) -> int | None:
    """The token between two words; None: words have no token between them."""
    one, two, both = tokenizer.encode("a"), tokenizer.encode("b"), tokenizer.encode("a b")
    space = both[len(one)] if len(both) == len(one) + 1 + len(two) else tokenizer.unk
    return None if space == tokenizer.unk else space


def _separate(text: str, line: str) -> bool:
    """Whether a space, or nothing, is before every occurrence of a text in a line."""
    return all(not before or before.isspace() for before in re.findall(rf"(^|.){re.escape(text)}", line, re.DOTALL))


def _bounded_in(text: str, line: str) -> bool:
    """Whether no letter or digit is after any occurrence of a text in a line."""
    return not any(map(_spaced, re.findall(rf"{re.escape(text)}(.)", line, re.DOTALL)))


def _matcher(phrases: list[str]) -> re.Pattern[str] | None:
    """Finds whole words, the longest phrase first; Chinese and Japanese have no spaces between words."""
    if not phrases:
        return None
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile("|".join(_bounded(phrase) for phrase in longest_first))


def _bounded(phrase: str) -> str:
    before = r"(?<!\w)" if _spaced(phrase[0]) else ""
    after = r"(?!\w)" if _spaced(phrase[-1]) else ""
    return before + re.escape(phrase) + after


def _spaced(sign: str) -> bool:
    """Whether a character belongs to words that spaces separate."""
    return sign.isalnum() and sign < CHINESE
