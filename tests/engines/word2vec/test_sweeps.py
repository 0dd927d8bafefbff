"""Chunks of a text and the threads that learn from them; the Huffman tree and its paths."""

from __future__ import annotations

import heapq
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from chainrule.base.huffman import huffman_paths, huffman_tree
from chainrule.engines.word2vec.kernels import SweepOptions
from chainrule.engines.word2vec.sweeps import (
    CHUNK,
    Sweeper,
    SweepPlan,
    SweepTotals,
    WordList,
    initial_weights,
    make_tables,
)

OPTIONS = SweepOptions(skip_gram=True, hierarchical=False, negatives=5, window=3, shrink=True, mean=True)


def sweeper(tokens: Any, *, width: int = 5, seed: int = 1, words: int = 20) -> Sweeper:
    plan = SweepPlan(OPTIONS, 0.0, 0.75, seed)
    word_list = WordList(np.arange(2, words + 2), np.arange(words, 0, -1) * 50, words + 2, 1)
    return Sweeper(plan, tokens, word_list, make_tables(plan, word_list), initial_weights(plan, words, width))


def pairs_text(lines: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Lines that repeat a pair of words, always the same pairs."""
    first_N = np.random.default_rng(seed).integers(1, 11, lines) * 2
    return np.stack([first_N, first_N + 1] * 5 + [np.ones(lines, np.int64)], 1).reshape(-1).astype(np.uint16)


def always() -> bool:
    return True


def test_chunks_cover_the_text_and_end_with_lines() -> None:
    tokens = pairs_text(5000)
    one = sweeper(tokens)
    pieces = [one.chunk(number) for number in range(one.chunks)]
    assert (np.concatenate(pieces) == tokens).all()
    assert all(piece[-1] == 1 for piece in pieces)
    assert {len(piece) for piece in pieces[1:-1]} <= set(range(CHUNK - 11, CHUNK + 12))
    assert (one.chunk(one.chunks + 1) == pieces[1]).all()  # numbers continue from epoch to epoch


def test_an_endless_line_is_cut() -> None:
    one = sweeper(np.full(3 * CHUNK + 5, 4, np.uint16))
    assert [len(one.chunk(number)) for number in range(one.chunks)] == [CHUNK, CHUNK, CHUNK, 5]


def test_one_thread_is_reproducible_and_another_seed_differs() -> None:
    vectors = []
    for seed in (1, 1, 2):
        one = sweeper(pairs_text(3000), seed=seed)
        one.sweep(0, one.chunks, lambda number: 0.025, 1, always)
        vectors.append(one.weights.inputs_VD)
    assert (vectors[0] == vectors[1]).all()
    assert (vectors[0] != vectors[2])[:, :5].all()


def test_rows_are_padded_with_zeros() -> None:
    one = sweeper(pairs_text(3000), width=5)
    one.sweep(0, one.chunks, lambda number: 0.025, 1, always)
    assert one.weights.inputs_VD.shape == (20, 8)
    assert (one.weights.inputs_VD[:, 5:] == 0).all()
    assert (one.weights.outputs_VD[:, 5:] == 0).all()
    assert one.weights.inputs_VD.ctypes.data % 64 == 0


def test_an_interrupted_sweep_equals_an_uninterrupted_one() -> None:
    tokens = pairs_text(5000)
    through, halved = sweeper(tokens), sweeper(tokens)
    reached, whole = through.sweep(0, 9, lambda number: 0.025 / (number + 1), 1, always)
    calls: list[int] = []

    def proceed() -> bool:
        calls.append(0)
        return len(calls) <= 4

    first, earlier = halved.sweep(0, 9, lambda number: 0.025 / (number + 1), 1, proceed)
    last, rest = halved.sweep(first, 9, lambda number: 0.025 / (number + 1), 1, always)
    assert (first, last, reached) == (4, 9, 9)
    assert (earlier.words, rest.words) != (0, 0)
    assert earlier.words + rest.words == whole.words
    assert (through.weights.inputs_VD == halved.weights.inputs_VD).all()
    assert (through.weights.outputs_VD == halved.weights.outputs_VD).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_learn(threads: int) -> None:
    """The loss falls, every chunk is learned from once, and the words of a pair are nearest neighbours."""
    tokens = pairs_text(8000)
    one = sweeper(tokens, width=8)
    _, before = one.sweep(0, one.chunks, lambda number: 0.05, threads, always)
    reached, after = one.sweep(one.chunks, 6 * one.chunks, lambda number: 0.05, threads, always)
    assert reached == 6 * one.chunks
    assert after.words == 5 * before.words == 5 * int((tokens != 1).sum())
    # Threads that write the same few vectors at once lose some of their changes, more or fewer in each run.
    share = 0.9 if threads == 1 else 0.97
    assert after.loss / after.measured < share * before.loss / before.measured
    vectors = one.weights.inputs_VD / np.linalg.norm(one.weights.inputs_VD, axis=1, keepdims=True)
    cosines = vectors @ vectors.T - 2 * np.eye(20)
    assert (cosines.argmax(1) == np.arange(20) ^ 1).all()


def test_totals_add_up() -> None:
    assert SweepTotals(1, 2, 3, 0.5) + SweepTotals(1, 1, 1, 1.0) == SweepTotals(2, 3, 4, 1.5)


# The tree


@pytest.mark.parametrize("counts", [[3, 3], [1, 1, 1, 1, 1], [50, 20, 10, 7, 7, 1], list(range(1, 60))])
def test_the_codes_are_optimal_and_prefix_free(counts: list[int]) -> None:
    found = huffman_paths(np.array(counts))
    codes = []
    for word in range(len(counts)):
        path = slice(int(found.starts_V[word]), int(found.starts_V[word + 1]))
        codes.append(tuple(zip(found.nodes_N[path].tolist(), found.left_N[path].tolist(), strict=True)))
    heap, total = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    assert sum(count * len(code) for count, code in zip(counts, codes, strict=True)) == total
    for one, other in combinations(codes, 2):
        shared = [a == b for a, b in zip(one, other, strict=False)]
        assert not all(shared)  # neither is a prefix of the other
        fork = shared.index(False)
        assert one[fork][0] == other[fork][0]  # they fork at the same node


def test_the_paths_follow_the_tree() -> None:
    counts_V = np.array([9, 4, 4, 2, 1])
    children_J2, found = huffman_tree(counts_V)[0], huffman_paths(counts_V)
    for word in range(5):
        node = 0
        for step in range(int(found.starts_V[word]), int(found.starts_V[word + 1])):
            assert found.nodes_N[step] == node
            node = int(children_J2[node, 0 if found.left_N[step] else 1])
        assert ~node == word


def test_one_word_needs_no_decision() -> None:
    found = huffman_paths(np.array([7]))
    assert found.starts_V.tolist() == [0, 0]
    assert len(found.nodes_N) == len(found.left_N) == 0
