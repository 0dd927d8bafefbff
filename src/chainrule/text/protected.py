"""Strings that a translation keeps as they are: URLs, e-mail addresses, tags, placeholders in braces, and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

PROTECTED = re.compile(
    r"""(?:https?|ftp)://[^\s<>"']*[^\s<>"'.,;:!?)\]}。，；：！？）]  # URL
    | www\.[^\s<>"']*[^\s<>"'.,;:!?)\]}。，；：！？）]
    | [A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+  # e-mail address
    | (?!<unk>)</?[A-Za-z][^<>]*>  # tag of XML or HTML
    | \{+[^{}]*\}+  # placeholder
    | \d+(?:[.,:]\d+)*  # number, with its separators
    """,
    re.VERBOSE,
)


def protected_strings(text: str) -> list[str]:
    """The protected strings of a text, in order."""
    return PROTECTED.findall(text)


def keeps(text: str, wanted: Mapping[str, int]) -> bool:
    """Whether a text has each protected string as often as wanted."""
    found = Counter(protected_strings(text))
    return all(found[string] == count for string, count in wanted.items())


def repair(text: str, wanted: Mapping[str, int]) -> str:
    """The text with each protected string as often as wanted: surplus ones removed, missing ones appended."""
    for string, count in wanted.items():
        places = [match.span() for match in PROTECTED.finditer(text) if match[0] == string]
        for begin, end in reversed(places[count:]):
            text = text[:begin].removesuffix(" ") + text[end:]
        text = " ".join([*([text] if text else []), *[string] * (count - len(places))])
    return text
