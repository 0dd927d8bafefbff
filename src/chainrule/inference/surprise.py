"""What a text costs in bits under a run, token by token: all parts add up to what `eval` charges for the same text.

    bits of the text = Σ bits of its tokens + formatting
    bits of a token  = -log2 p(token | all before it) + the spelling of an unknown word

Formatting is what the tokens do not encode besides spellings: white space between words, and lines that the tokeniser
does not restore. It belongs to the text as a whole; with a tokeniser that loses nothing it is 0.

The text is read as `eval` reads a file with this content: a newline is `<eos>`, and the text has no other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from chainrule.errors import ConfigError
from chainrule.inference.heat_map import heat_map
from chainrule.inference.inspect import TOP, inspect_tokens
from chainrule.inference.subject import TextModel
from chainrule.inference.text_bits import PlacedToken, TextBits
from chainrule.inference.unknown_words import SPELLED
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.tokenizers.vocabulary import VocabularyTokenizer


class Surprise(TextBits):
    """The bits of a text under one run; a notebook shows the text coloured by them."""

    def _repr_html_(self) -> str:
        """The text, coloured by the bits of its tokens, for notebooks."""
        return heat_map(self)


def surprise_texts(subject: TextModel, texts: Iterable[str], top: int = TOP) -> Iterator[Surprise]:
    """The surprise of each text, which is read separately."""
    if top < 0:
        raise ConfigError(f"top is {top}; expected the number of alternatives, at least 0")
    for text in texts:
        yield _surprise(subject, text, top)


def _surprise(subject: TextModel, text: str, top: int) -> Surprise:
    tokenizer = subject.tokenizer
    tokens_N = tokenizer.encode_block(text)
    # Other tokenisers lose whole lines, whose spelling is no matter of one token.
    spelled = isinstance(tokenizer, VocabularyTokenizer)
    charges_N = SPELLED.charges(tokenizer, text, tokens_N) if spelled else 0.0 * tokens_N
    details = inspect_tokens(subject, tokens_N, tokenizer.text_pieces(text), charges_N, top) if text else ()
    placed = zip(details, tokenizer.spans(text), (-charges_N / math.log(2)).tolist(), strict=True) if text else ()
    meter = ResidueMeter(tokenizer)
    meter.add(text, tokens_N)
    meter.finish()
    return Surprise(
        run=subject.name,
        tokenizer=tokenizer.kind,
        text=text,
        bytes=len(text.encode(errors="surrogateescape")),
        tokens=[
            PlacedToken(**vars(one), begin=begin, end=end, spelling_bits=max(0.0, bits))
            for one, (begin, end), bits in placed
        ],
        formatting_bits=max(0.0, meter.bits + charges_N.sum() / math.log(2)) if text else 0.0,
        normalised=subject.model.normalised,
    )
