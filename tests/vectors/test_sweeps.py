"""Chunks of a text and the threads that learn from them; the Huffman tree and its ways."""

from __future__ import annotations

import heapq
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from chainrule.base.huffman import huffman, paths
from chainrule.engines.word2vec.kernels import Options
from chainrule.engines.word2vec.sweeps import CHUNK, Plan, Sweeper, Totals, Vocabulary, first_weights, make_tables

OPTIONS = Options(skip_gram=True, hierarchical=False, negatives=5, window=3, shrink=True, mean=True)


def sweeper(tokens: Any, *, width: int = 5, seed: int = 1, words: int = 20) -> Sweeper:
    plan = Plan(OPTIONS, 0.0, 0.75, seed)
    vocabulary = Vocabulary(np.arange(2, words + 2), np.arange(words, 0, -1) * 50, words + 2, 1)
    return Sweeper(plan, tokens, vocabulary, make_tables(plan, vocabulary), first_weights(plan, words, width))


def pairs_text(lines: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Lines of two words that go together, over and over."""
    first_L = np.random.default_rng(seed).integers(1, 11, lines) * 2
    return np.stack([first_L, first_L + 1] * 5 + [np.ones(lines, np.int64)], 1).reshape(-1).astype(np.uint16)


def always() -> bool:
    return True


def test_chunks_are_the_text_and_end_with_lines() -> None:
    tokens = pairs_text(5000)
    one = sweeper(tokens)
    pieces = [one.chunk(number) for number in range(one.chunks)]
    assert (np.concatenate(pieces) == tokens).all()
    assert all(piece[-1] == 1 for piece in pieces)
    assert {len(piece) for piece in pieces[1:-1]} <= set(range(CHUNK - 11, CHUNK + 12))
    assert (one.chunk(one.chunks + 1) == pieces[1]).all()  # numbered on from epoch to epoch


def test_a_line_without_end_is_cut() -> None:
    one = sweeper(np.full(3 * CHUNK + 5, 4, np.uint16))
    assert [len(one.chunk(number)) for number in range(one.chunks)] == [CHUNK, CHUNK, CHUNK, 5]


def test_one_thread_is_the_same_every_time_and_another_seed_is_not() -> None:
    vectors = []
    for seed in (1, 1, 2):
        one = sweeper(pairs_text(3000), seed=seed)
        one.go(0, one.chunks, lambda number: 0.025, 1, always)
        vectors.append(one.weights.inputs_VD)
    assert (vectors[0] == vectors[1]).all()
    assert (vectors[0] != vectors[2])[:, :5].all()


def test_rows_are_filled_up_with_zeros() -> None:
    one = sweeper(pairs_text(3000), width=5)
    one.go(0, one.chunks, lambda number: 0.025, 1, always)
    assert one.weights.inputs_VD.shape == (20, 8)
    assert (one.weights.inputs_VD[:, 5:] == 0).all()
    assert (one.weights.outputs_VD[:, 5:] == 0).all()
    assert one.weights.inputs_VD.ctypes.data % 64 == 0


def test_going_on_is_the_same_as_going_through() -> None:
    tokens = pairs_text(5000)
    through, halved = sweeper(tokens), sweeper(tokens)
    reached, whole = through.go(0, 9, lambda number: 0.025 / (number + 1), 1, always)
    asked: list[int] = []

    def going() -> bool:
        asked.append(0)
        return len(asked) <= 4

    first, begun = halved.go(0, 9, lambda number: 0.025 / (number + 1), 1, going)
    last, rest = halved.go(first, 9, lambda number: 0.025 / (number + 1), 1, always)
    assert (first, last, reached) == (4, 9, 9)
    assert (begun.words, rest.words) != (0, 0)
    assert begun.words + rest.words == whole.words
    assert (through.weights.inputs_VD == halved.weights.inputs_VD).all()
    assert (through.weights.outputs_VD == halved.weights.outputs_VD).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_learn(threads: int) -> None:
    """The loss falls, every chunk is learned from once, and words that go together are found."""
    tokens = pairs_text(8000)
    one = sweeper(tokens, width=8)
    _, before = one.go(0, one.chunks, lambda number: 0.05, threads, always)
    reached, after = one.go(one.chunks, 6 * one.chunks, lambda number: 0.05, threads, always)
    assert reached == 6 * one.chunks
    assert after.words == 5 * before.words == 5 * int((tokens != 1).sum())
    assert after.loss / after.measured < 0.9 * before.loss / before.measured
    vectors = one.weights.inputs_VD / np.linalg.norm(one.weights.inputs_VD, axis=1, keepdims=True)
    cosines = vectors @ vectors.T - 2 * np.eye(20)
    assert (cosines.argmax(1) == np.arange(20) ^ 1).all()


def test_totals_add_up() -> None:
    assert Totals(1, 2, 3, 0.5) + Totals(1, 1, 1, 1.0) == Totals(2, 3, 4, 1.5)


# The tree


@pytest.mark.parametrize("counts", [[3, 3], [1, 1, 1, 1, 1], [50, 20, 10, 7, 7, 1], list(range(1, 60))])
def test_the_codes_are_optimal_and_prefix_free(counts: list[int]) -> None:
    ways = paths(np.array(counts))
    codes = []
    for word in range(len(counts)):
        way = slice(int(ways.starts_V[word]), int(ways.starts_V[word + 1]))
        codes.append(tuple(zip(ways.nodes_P[way].tolist(), ways.left_P[way].tolist(), strict=True)))
    heap, total = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    assert sum(count * len(code) for count, code in zip(counts, codes, strict=True)) == total
    for one, other in combinations(codes, 2):
        shared = [a == b for a, b in zip(one, other, strict=False)]
        assert not all(shared)  # neither is the beginning of the other
        parting = shared.index(False)
        assert one[parting][0] == other[parting][0]  # they part at one node, to either side


def test_the_ways_follow_the_tree() -> None:
    counts_V = np.array([9, 4, 4, 2, 1])
    children_I2, ways = huffman(counts_V)[0], paths(counts_V)
    for word in range(5):
        node = 0
        for step in range(int(ways.starts_V[word]), int(ways.starts_V[word + 1])):
            assert ways.nodes_P[step] == node
            node = int(children_I2[node, 0 if ways.left_P[step] else 1])
        assert ~node == word


def test_one_word_needs_no_decision() -> None:
    ways = paths(np.array([7]))
    assert ways.starts_V.tolist() == [0, 0]
    assert len(ways.nodes_P) == len(ways.left_P) == 0
