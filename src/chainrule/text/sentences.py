"""Splitting paragraphs into sentences by rules, for Western and Chinese punctuation.

A sentence ends

- after 。！？ or …… and the closing quotes and brackets that follow, whatever comes next;
- after . ! ? or … and the closing quotes and brackets that follow, if white space comes next and then anything but a
  lower-case letter.

A full stop does not end a sentence after a known abbreviation (Dr., e.g., z.B.), after a single letter (J. S. Bach), or
after one or two digits (am 3. Oktober).
"""

from __future__ import annotations

import re

CLOSING = "\"'”’»›)\\]）」』】》"
END = re.compile(rf"(?:[。！？]|…{{2,}})+[{CLOSING}]*\s*|(?:[.!?…]+[{CLOSING}]*)(?:\s+|$)")
"""Punctuation that may end a sentence, with what follows up to the next one."""

_WORDS = """
mr mrs ms dr prof sr jr st vs etc inc ltd co corp no nos vol fig figs eq al cf approx dept est gen gov col capt lt
sgt rev hon pres sen rep jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e a.m p.m u.s u.k
bzw ca usw evtl ggf nr str abb bd hrsg inkl max min mio mrd s.o s.u z.b d.h u.a u.ä o.ä i.d.r
m mme mlle av env p.ex sra dra ud uds
"""
ABBREVIATIONS = frozenset(_WORDS.split())
"""Words before a full stop that is not the end of a sentence, in lower case and without it."""

CHINESE_ENDS = "。！？…”’」』）】》"
"""After these, the next sentence follows without a space."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, without the white space between them; an empty paragraph has none."""
    sentences, begin = [], 0
    for match in END.finditer(text):
        if _ends(text, match):
            sentences.append(text[begin : match.end()].strip())
            begin = match.end()
    rest = text[begin:].strip()
    return [*sentences, rest] if rest else sentences


def join_sentences(sentences: list[str]) -> str:
    """A paragraph of sentences, with a space between two unless the first ends with Chinese punctuation."""
    text = ""
    for sentence in filter(None, sentences):
        text += (" " if text and text[-1] not in CHINESE_ENDS else "") + sentence
    return text


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends with this punctuation."""
    mark, following = match[0], text[match.end() : match.end() + 1]
    if mark[0] in "。！？" or mark.startswith("……"):
        return True
    if following.islower():
        return False
    if mark.strip() != ".":
        return True
    word = re.split(r"[\s(\[\"'“‘„«]", text[: match.start()])[-1]
    single = len(word) == 1 and word.isalpha()
    return not (single or re.fullmatch(r"\d{1,2}", word) or word.lower() in ABBREVIATIONS)
