"""Queries of a table: walks, single steps and whole rows agree with each other and with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.base.arrays import Array
from chainrule.engines.ngram.query import LN10, begin, distribution, walk
from chainrule.engines.ngram.table import NgramTable
from engines.ngram.naive import Stream, reference
from engines.ngram.test_counts import streams, zipfian
from engines.ngram.test_table import made

few = settings(max_examples=30, deadline=None)


def ending(table: NgramTable) -> int:
    return -1 if table.across_lines else table.eos


def started(table: NgramTable) -> Array:
    state_O = np.empty(table.order, np.int64)
    begin(state_O, table.eos)
    return state_O


def ask(table: NgramTable, tokens: Sequence[int], state_O: Array) -> tuple[list[float], list[int]]:
    """log10 p of tokens and the depths of their contexts; advances the state."""
    probs_T, depths_T = walk(table.arrays, np.asarray(tokens, np.int64), state_O, ending(table), table.absent)
    return probs_T.tolist(), depths_T.tolist()


def row(table: NgramTable, state_O: Array) -> Array:
    """log10 p of every word."""
    row_V = np.empty(table.vocab_size, np.float32)
    distribution(table.arrays, state_O, table.absent, row_V)
    return row_V / LN10


CASES = pytest.mark.parametrize(
    ("smoothing", "options"),
    [
        ("modified-kneser-ney", {}),
        ("modified-kneser-ney", {"quantize": True}),
        ("modified-kneser-ney", {"prune": (0, 1)}),
        ("mle", {}),
        ("stupid-backoff", {}),
    ],
    ids=str,
)


@CASES
@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_one_walk_equals_many_short_ones(order: int, across_lines: bool, smoothing: str, options: Any) -> None:
    stream = zipfian(20, 400, across_lines)
    table, tokens = made(stream, order, smoothing, **options), [*stream.text[:50], *range(20), 3, 3, 3]
    state_O = started(table)
    probs, depths = ask(table, tokens, state_O)
    for size in (1, 7):
        piecewise_O, found = started(table), []
        for place in range(0, len(tokens), size):
            found += list(zip(*ask(table, tokens[place : place + size], piecewise_O), strict=True))
        assert found == list(zip(probs, depths, strict=True))
        np.testing.assert_array_equal(piecewise_O, state_O)
    assert ask(table, [], state_O) == ([], [])


@CASES
@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_distribution_equals_the_walk_of_every_word(
    order: int, across_lines: bool, smoothing: str, options: Any
) -> None:
    stream = zipfian(20, 400, across_lines)
    table = made(stream, order, smoothing, **options)
    state_O = started(table)
    for token in [*stream.text[:12], 19, 18, 19]:
        row_V = row(table, state_O)
        every = [ask(table, [word], state_O.copy())[0][0] for word in range(20)]
        np.testing.assert_allclose(row_V, np.array(every, np.float32), rtol=1e-5, atol=1e-5)
        if smoothing != "stupid-backoff" and not options.get("quantize"):
            assert np.power(10.0, row_V.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
        ask(table, [token], state_O)


@few
@given(stream=streams(), order=st.integers(1, 5), probe=st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_a_state_holds_the_contexts_that_were_seen(stream: Stream, order: int, probe: list[int]) -> None:
    """The number of possible words of context, then the node of each context in the table, verified by its words."""
    table = made(stream, order, "mle")
    state_O = started(table)
    seen = [set(stream.counts(length)) for length in range(1, order + 1)]
    read = [stream.eos]
    for token in probe:
        _, [depth] = ask(table, [token], state_O)
        read = [*read, token] if stream.across_lines or token != stream.eos else [stream.eos]
        context = read[max(0, len(read) - order + 1) :] if order > 1 else []
        # Every single word is a context, seen or not.
        known = [n for n in range(1, len(context) + 1) if n == 1 or tuple(context[-n:]) in seen[n - 1]]
        assert int(state_O[0]) == len(context)
        assert (state_O[1:] >= 0).tolist() == [n in known for n in range(1, order)]
        assert 0 <= depth < order
        for n in known:
            assert words_of(table, int(state_O[n]), n) == context[-n:]


def words_of(table: NgramTable, node: int, level: int) -> list[int]:
    """The n-gram of a node: its last word, then that of its parent, and so on."""
    t = table.arrays
    first = np.concatenate([t.first_words, np.repeat(t.first_groups, 64)[: len(t.first_steps)] + t.first_steps])
    words: list[int] = []
    for _ in range(level - 1):
        words.insert(0, int(t.words[node - table.vocab_size]))
        node = int(np.searchsorted(first, node, side="right")) - 1
    return [node, *words]


@pytest.mark.parametrize("across_lines", [False, True])
def test_a_line_starts_without_context_unless_lines_are_joined(across_lines: bool) -> None:
    stream = Stream([1, 2, 0, 1, 2, 0, 2, 1, 0] * 5, 3, eos=0, across_lines=across_lines)
    table = made(stream, 4, "witten-bell")
    formula, state_O = reference("witten-bell", stream, 4), started(table)
    ask(table, [2, 1, 0], state_O)
    assert (state_O.tolist() == started(table).tolist()) != across_lines
    want = np.array(formula.row_after([2, 1, 0]), float)
    np.testing.assert_allclose(np.power(10, row(table, state_O)), want, rtol=1e-4)


@pytest.mark.parametrize(
    ("prefix", "score"),
    [
        ([2, 3, 1], 1.0),  # always followed by 2
        ([3, 1], 0.4),  # unseen with this beginning, otherwise always
        ([3, 5, 1], 0.4**2),
        ([], 0.4 * 3 / 9),  # only 1 begins the text; 3 of 9 words are 2
        ([4, 5], 0.4**3 * 3 / 9),
        ([4, 4, 5], 0.4**3 * 3 / 9),  # words further back than three cost nothing
    ],
)
def test_every_word_of_context_that_is_dropped_costs_its_factor(prefix: list[int], score: float) -> None:
    """Stupid back-off: also if the context itself is unseen."""
    stream = Stream([1, 2, 3, 1, 2, 3, 1, 2, 0], 6, eos=0, across_lines=True)
    table = made(stream, 4, "stupid-backoff")
    assert table.absent == float(np.log10(0.4))
    state_O = started(table)
    ask(table, prefix, state_O)
    [prob], _ = ask(table, [2], state_O)
    assert 10**prob == pytest.approx(score, rel=1e-5)


def test_a_unigram_model_has_no_context() -> None:
    stream = zipfian(20, 400)
    table, counts = made(stream, 1, "mle"), stream.counts(1)
    state_O = started(table)
    probs, depths = ask(table, range(20), state_O)
    assert [10**prob for prob in probs] == pytest.approx([counts[(word,)] / 400 for word in range(20)])
    assert (depths, state_O.tolist()) == ([0] * 20, [0])
