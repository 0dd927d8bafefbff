"""Tokens and residue restore the exact bytes, at the measured cost."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.base.lazy import LazyKernels
from chainrule.errors import DataError
from chainrule.text import Texts, Tokenizer, text_of, train_tokenizer
from chainrule.text.coding.coders import CostCoder, RangeDecoder, RangeEncoder
from chainrule.text.coding.residue import ResidueWriter, read_residue
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.sources import TextSource
from conftest import KINDS, SMALL

Small = Callable[[str], Tokenizer]

TRICKY = [
    "<unk>",
    "the",
    "The cat",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "(",
    "￭",
    "␣",
    "▁",
    "[SEP]",
    "白日",
    "\u3000",
]
TEXTS = st.lists(
    st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    min_size=1,
    max_size=12,
).map(lambda parts: "".join(parts) or "x")


def measured(tokenizer: Tokenizer, texts: Texts) -> tuple[list[int], bytes, float, ResidueMeter]:
    """The ids of a text, the code of its residue, the bits counted by a cost coder, and the meter."""
    encoder, cost, meter = RangeEncoder(), CostCoder(), ResidueMeter(tokenizer)
    writers = [ResidueWriter(tokenizer, encoder), ResidueWriter(tokenizer, cost), meter]
    ids: list[int] = []
    for block in tokenizer.blocks(texts):
        found = tokenizer.encode_block(block)
        ids += found.tolist()
        for writer in writers:
            writer.add(block, found)
    for writer in writers:
        writer.finish()
    return ids, encoder.finish(), cost.bits, meter


def read(tokenizer: Tokenizer, ids: list[int], data: bytes) -> bytes:
    return b"".join(read_residue(tokenizer, ids, RangeDecoder(data)))


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, block=st.sampled_from([16, 1 << 20]))
@settings(max_examples=40)
def test_round_trip_and_cost(small: Small, kind: str, text: str, block: int) -> None:
    tokenizer, data = small(kind), text.encode()
    longest = max(map(len, re.split(rb"[ \t\n]", data)))  # a block has room for every word
    texts = Texts([TextSource("text", lambda: iter([data]))], block=max(block, longest + 1))
    ids, code, counted, meter = measured(tokenizer, texts)
    assert read(tokenizer, ids, code) == data
    assert meter.bits == pytest.approx(counted, rel=1e-3, abs=1e-2)
    assert abs(8 * len(code) - meter.bits) < 72
    if tokenizer.exact:
        assert (code, meter.bits, meter.oov) == (b"", 0.0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_larger_text(small: Small, kind: str) -> None:
    generator = np.random.default_rng(0)
    words = ["the", "cat", "Cat", "mat", "zebra", "白日依山盡", "<unk>", "a,b", "(x)", " ", "\t", "é"]
    lines = ["  " * (n % 3) + " ".join(generator.choice(words, n % 9)) + " " * (n % 2) for n in range(400)]
    texts = text_of("\n".join(lines))
    ids, code, counted, meter = measured(small(kind), texts)
    assert read(small(kind), ids, code) == "\n".join(lines).encode()
    assert meter.bits == pytest.approx(counted, rel=1e-3)
    assert abs(8 * len(code) - meter.bits) < 64 + 0.001 * meter.bits


@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_words_that_encoding_finds_change_nothing(texts: list[str]) -> None:
    LazyKernels.load_all()
    tokenizer = train_tokenizer("word", text_of("the cat\n"))
    plain, found = ResidueMeter(tokenizer), ResidueMeter(tokenizer)
    for text in texts:
        plain.add(text, tokenizer.encode_block(text))
        encoded = tokenizer.encode_words(text)
        assert encoded.words is not None
        found.add(*encoded)
    for meter in (plain, found):
        meter.finish()
    assert (found.bits, found.oov) == (plain.bits, plain.oov)


def test_byte_residue_is_nothing_even_for_no_text() -> None:
    data = bytes(range(256)) * 3
    tokenizer = train_tokenizer("byte", text_of(data))
    ids, code, _, meter = measured(tokenizer, text_of(data))
    assert (read(tokenizer, ids, code), code, meter.bits) == (data, b"", 0.0)


def test_regular_lines_are_nearly_free() -> None:
    treebank = text_of(" the cat <unk> sat on N <unk> \n" * 4000)
    _, code, _, meter = measured(train_tokenizer("word", treebank), treebank)
    assert meter.oov == 0
    assert meter.bits < 100  # for 4000 lines and 8000 literal <unk>
    assert len(code) <= 16
    plain = text_of("the cat sat\n" * 4000)
    assert measured(train_tokenizer("word", plain), plain)[3].bits < 20


def test_unknown_words_cost_their_spelling() -> None:
    tokenizer = train_tokenizer("word", text_of("nation station motion\n"))
    known = measured(tokenizer, text_of("nation station\n"))[3]
    unknown = measured(tokenizer, text_of("nation lotion\n"))[3]
    assert (known.oov, unknown.oov) == (0, 1)
    flag = 1.0  # the first flag costs one bit
    assert unknown.bits == pytest.approx(known.bits + flag + tokenizer.speller.bits(b"lotion"))


def test_char_unknowns_are_counted_and_spelled() -> None:
    tokenizer = train_tokenizer("char", text_of("abc"))
    ids, code, _, meter = measured(tokenizer, text_of("aéb\n白"))
    assert meter.oov == 2
    assert read(tokenizer, ids, code) == "aéb\n白".encode()


def test_residue_of_other_tokens(small: Small) -> None:
    tokenizer = small("word")
    line = "the cat " * 3
    texts = Texts([TextSource("text", lambda: iter([line.encode()]))], block=10)
    ids, code, _, _ = measured(tokenizer, texts)
    with pytest.raises(DataError) as caught:
        read(tokenizer, ids[:1], code)
    assert str(caught.value) == (
        "the residue does not fit the tokens: expected what was written with them; the file is damaged."
    )


def test_tricky_text_is_restored(small: Small) -> None:
    """The training text of the tokenisers has marks, special tokens and odd spaces."""
    for kind in KINDS:
        ids, code, _, meter = measured(small(kind), text_of(SMALL))
        assert read(small(kind), ids, code) == SMALL.encode()
        assert meter.oov == 0 or small(kind).residue_kind == "lines"
