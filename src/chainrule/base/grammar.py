"""Articles and plurals in messages: "an lstm", "1 line", "2 lines"."""

from __future__ import annotations

VOWELS = "aeiou"
SPELLED_WITH_VOWEL = "fhlmnrsx"
"""Consonants whose names begin with a vowel: an "L"."""


def with_article(name: str) -> str:
    """A name with "a" or "an": names without a vowel at the beginning, such as lstm, are read letter by letter."""
    head = name.lower()[:3]
    spelled = head.isalpha() and not any(letter in f"{VOWELS}y" for letter in head)
    vowel = head[:1] in (SPELLED_WITH_VOWEL if spelled else VOWELS) and not head.startswith("uni")
    return f"{'an' if vowel else 'a'} {name}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """A number and its noun: 1 line, 1,000 lines; `many` is a plural that does not just add s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
