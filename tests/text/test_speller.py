"""The spelling model against a naive implementation of its formula."""

from __future__ import annotations

from collections import Counter
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.text.coding.coders import CostCoder, RangeDecoder, RangeEncoder
from chainrule.text.coding.speller import BASE, END, START, SYMBOLS, Speller

WORDS = [b"the", b"then", b"there", "été".encode(), b"a", b"\xff\x00"]


def naive(words: list[bytes], context: tuple[int, ...], symbol: int) -> float:
    """Interpolated Witten-Bell smoothing by recursion over a table of all events."""
    events = Counter[tuple[tuple[int, ...], int]]()
    for word in words:
        symbols = [START] * 3 + list(word) + [END]
        events.update((tuple(symbols[n - len(context) : n]), symbols[n]) for n in range(3, len(symbols)))
    after = {s: count for (c, s), count in events.items() if c == context}
    lower = naive(words, context[1:], symbol) if context else 1 / SYMBOLS
    if not after:
        return lower
    return (after.get(symbol, 0) + len(after) * lower) / (sum(after.values()) + len(after))


@pytest.mark.parametrize("word", [b"the", b"thx", b"", b"zebra", "é".encode()])
def test_bits_follow_the_formula(word: bytes) -> None:
    symbols = [START] * 3 + list(word) + [END]
    expected = -sum(log2(naive(WORDS, tuple(symbols[n - 3 : n]), symbols[n])) for n in range(3, len(symbols)))
    assert Speller(WORDS).bits(word) == pytest.approx(expected)


@pytest.mark.parametrize("context", [(START, START, START), (START, ord("t"), ord("h")), (1, 2, 3)])
def test_distribution_sums_to_one(context: tuple[int, ...]) -> None:
    number = (context[0] * BASE + context[1]) * BASE + context[2]
    p_V = Speller(WORDS).distribution(number)
    assert p_V.sum() == pytest.approx(1)
    assert p_V.min() > 0
    assert p_V[ord("e")] == pytest.approx(naive(WORDS, context, ord("e")))


def test_without_words_the_distribution_is_uniform() -> None:
    assert Speller([]).bits(b"ab") == pytest.approx(3 * log2(257))


def test_known_spelling_is_cheaper() -> None:
    speller = Speller([b"nation", b"station", b"ration", b"motion"])
    assert speller.bits(b"lotion") < speller.bits(b"noitol") < speller.bits(b"\x80\x81\x82\x83\x84\x85")


@given(st.lists(st.binary(max_size=12), max_size=5))
def test_the_code_is_as_long_as_measured(words: list[bytes]) -> None:
    speller, cost, encoder = Speller(WORDS), CostCoder(), RangeEncoder()
    for word in words:
        speller.code(cost, word)
        speller.code(encoder, word)
    assert cost.bits == pytest.approx(float(np.sum(speller.bits_of(words))), rel=1e-3, abs=1e-3)
    decoder = RangeDecoder(encoder.finish())
    assert [speller.code(decoder, None) for _ in words] == words
