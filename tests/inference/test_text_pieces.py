"""Text in pieces: joined, they are the text of all tokens, for every kind of tokeniser."""

from __future__ import annotations

import numpy as np
import pytest

from chainrule.inference.pieces import CONTEXT, TextPieces
from chainrule.text import text_of, train_tokenizer
from chainrule.text.tokenizers import Tokenizer

TEXT = 'the cat sat — on the mat, naïve 猫 坐\nit\'s  an (old) "mat"\nhello world 你好 🙂 end\n' * 20


@pytest.fixture(scope="module", params=["char", "byte", "word", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    sizes = {"bpe": 280}
    return train_tokenizer(request.param, text_of(TEXT), vocab_size=sizes.get(request.param), min_count=1)


def whole(tokenizer: Tokenizer, line: list[int], ids: list[int]) -> str:
    """The text that the ids add to a line, decoded at once; an unfinished character at its end is left out."""
    decoded = tokenizer.decode([*line, *ids])[len(tokenizer.decode(line)) :]
    return decoded.rstrip("\ufffd") if decoded.endswith("\ufffd") else decoded


def test_the_pieces_of_a_text_are_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_block(TEXT[:400]).tolist()
    assert len(ids) > 4 * CONTEXT
    pieces = TextPieces(tokenizer)
    assert "".join(pieces.feed(token) for token in ids) == whole(tokenizer, [], ids)
    assert TextPieces(tokenizer).feed_all(ids) == whole(tokenizer, [], ids)


def test_a_long_line_is_decoded_as_a_short_one(tokenizer: Tokenizer) -> None:
    """A line of random words: what is written for a token does not depend on those far before it."""
    random = np.random.default_rng(1)
    words = [word for word in TEXT.split() if word.isascii()]
    line = tokenizer.encode("the cat")
    ids = tokenizer.encode(" ".join(random.choice(words, 60)))
    pieces, found = TextPieces(tokenizer, line), ""
    for place, token in enumerate(ids, 1):
        found += pieces.feed(token)
        assert found == whole(tokenizer, line, ids[:place])
    assert TextPieces(tokenizer, line).feed_all(ids) == found
