"""Where the tokens of a text are: spans (begin, end) in characters.

Spans never go backwards. Tokens that are parts of one character share its span; a token without text, for example a
mark of the tokeniser, has an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Span = tuple[int, int]

REACH = 16
"""Characters that a search for the next token may skip, for each token since the last one that was found."""


def spans_by_bytes(text: str, sizes: Sequence[int]) -> list[Span]:
    """Spans of tokens whose bytes together are those of the text, from the number of bytes of each."""
    widths_N = [len(character.encode(errors="surrogateescape")) for character in text]
    starts_N = np.concatenate([[0], np.cumsum(widths_N, dtype=np.int64)])
    edges_N = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    begins_N = np.searchsorted(starts_N, edges_N[:-1], "right") - 1
    ends_N = np.searchsorted(starts_N, edges_N[1:], "left")
    return list(zip(begins_N.tolist(), np.maximum(begins_N, ends_N).tolist(), strict=True))


def spans_by_search(text: str, spellings: Sequence[str]) -> list[Span]:
    """Spans of tokens that may be spelled otherwise than in the text: each is searched after the one before it.

    Tokens that are not found, for example because the tokeniser normalises, share the text up to the next that is.
    """
    spans: list[Span] = []
    place, missing = 0, 0
    for spelling in spellings:
        begin, end = _search(text, spelling, place, REACH * (missing + 1))
        if begin < 0:
            missing += 1
            spans.append((place, place))
            continue
        if missing:
            spans[-missing:] = [(place, begin)] * missing
        spans.append((begin, end))
        place, missing = end, 0
    if missing:
        spans[-missing:] = [(place, len(text))] * missing
    return spans


def _search(text: str, spelling: str, place: int, reach: int) -> Span:
    """The next span with a spelling, the white space before it included; (-1, -1) if it is not within reach."""
    bare = spelling.strip()
    if not bare:
        spaces = len(text) - place - len(text[place:].lstrip())
        return place, place + min(len(spelling), spaces)
    found = text.find(bare, place, place + len(bare) + reach)
    if found < 0:
        return -1, -1
    return (found if text[place:found].strip() else place), found + len(bare)
