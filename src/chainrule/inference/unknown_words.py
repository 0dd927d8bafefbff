"""What a word outside the vocabulary costs, besides log p of `<unk>`.

All unknown words share one token, so log p of `<unk>` is the probability that some unknown word follows, not that of
this word. Where lines with different unknown words are compared, nonsense would win. Three conventions:

    unk      log p of `<unk>` alone, as KenLM scores
    spell    plus log p of the spelling under the tokeniser's speller, as bits per byte charges
    penalty  minus a constant per unknown word

A literal `<unk>` of the text is the token itself and costs nothing more. A tokeniser that is not a list of words and
still has an unknown token (sentencepiece) loses the spelling of a line: `spell` then charges that of the line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError, unknown_name
from chainrule.text.coding.residue import unknown_parts
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE, VocabularyTokenizer

OovKind = Literal["unk", "spell", "penalty"]
PENALTY = 10.0
"""Default of `penalty` in nats: a word that is known at all rarely costs more than log p of `<unk>` and this."""


@dataclass(frozen=True)
class UnknownWords:
    """How unknown words are charged."""

    kind: OovKind = "unk"
    penalty: float | None = None  # nats per unknown word; None: `PENALTY`

    def __post_init__(self) -> None:
        if self.kind not in CHARGES:
            raise unknown_name("oov", self.kind, CHARGES)
        if self.penalty is not None and self.kind != "penalty":
            raise ConfigError(
                f"oov_penalty is {self.penalty}, but oov is {self.kind}; use oov penalty, or leave it out"
            )
        if self.penalty is not None and not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise ConfigError(f"oov_penalty is {self.penalty}; expected a number of nats of at least 0")

    def charges(self, tokenizer: Tokenizer, text: str, ids: Sequence[int] | Array) -> Array:
        """What each token of a text adds to its log p in nats, at most 0: N, float64.

        `ids` are those of `tokenizer.encode_block(text)`; one eos more at the end is allowed.
        """
        ids_N = np.asarray(ids)
        charges_N = np.zeros(len(ids_N))
        if self.kind == "unk" or tokenizer.unk is None or not (ids_N == tokenizer.unk).any():
            return charges_N
        places, spellings = _unknown(tokenizer, text, ids_N)
        penalty = PENALTY if self.penalty is None else self.penalty
        charges_N[places] = -CHARGES[self.kind](tokenizer, spellings, penalty)
        return charges_N


def _unknown(tokenizer: Tokenizer, text: str, ids_N: Array) -> tuple[list[int], list[str]]:
    """The places of unknown tokens that are not a literal `<unk>`, and their spellings."""
    found = np.flatnonzero(ids_N == tokenizer.unk).tolist()
    if isinstance(tokenizer, VocabularyTokenizer):
        both = zip(found, unknown_parts(tokenizer, text, ids_N), strict=True)
        kept = [(place, part) for place, part in both if part != UNK_PIECE]
    else:
        lines, ends = text.split("\n"), np.flatnonzero(ids_N == tokenizer.eos)
        first = {int(line): place for place, line in zip(found[::-1], np.searchsorted(ends, found)[::-1], strict=True)}
        kept = [(place, lines[line]) for line, place in sorted(first.items())]
    return [place for place, _ in kept], [part for _, part in kept]


def _spelling(tokenizer: Tokenizer, spellings: list[str], penalty: float) -> Array:
    encoded = [spelling.encode(errors="surrogatepass") for spelling in spellings]
    return np.asarray(tokenizer.speller.bits_of(encoded) * math.log(2))


def _constant(tokenizer: Tokenizer, spellings: list[str], penalty: float) -> Array:
    return np.full(len(spellings), penalty)


def _nothing(tokenizer: Tokenizer, spellings: list[str], penalty: float) -> Array:
    return np.zeros(len(spellings))


CHARGES: dict[str, Callable[[Tokenizer, list[str], float], Array]] = {
    "unk": _nothing,
    "spell": _spelling,
    "penalty": _constant,
}
"""The cost in nats of each of some spellings."""

UNK_ONLY, SPELLED = UnknownWords("unk"), UnknownWords("spell")
