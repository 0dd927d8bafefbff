"""The packed table: lossless by default, at most one bin off when quantised, and mapped from its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.base.arrays import Array, write_arrays
from chainrule.engines.ngram.estimate import EstimationPlan, estimate
from chainrule.engines.ngram.packing import MAX_CODES, pack
from chainrule.engines.ngram.query import begin, distribution, walk
from chainrule.engines.ngram.query_kernels import first_child
from chainrule.engines.ngram.table import BINS, FORMAT, NgramTable, TableArrays, load_table, value
from chainrule.errors import RunError
from engines.ngram.naive import INTERPOLATED, Stream, reference
from engines.ngram.test_counts import zipfian


def numbers(codes: Array, table: Array, starts: Array) -> Array:
    """The numbers behind the codes of all levels."""
    levels = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.array([value(codes, table, level, node) for node, level in enumerate(levels)], np.float32)


def probs_of(arrays: TableArrays) -> Array:
    return numbers(arrays.probs, arrays.prob_table, arrays.starts)


def backoffs_of(arrays: TableArrays) -> Array:
    return numbers(arrays.backoffs, arrays.backoff_table, arrays.starts[:-1])


def flat(probs_V: Array, *, quantize: bool = False) -> TableArrays:
    """A table of unigrams with these probabilities."""
    starts = np.array([0, len(probs_V)])
    return pack(
        starts, np.arange(len(probs_V)), np.zeros(1, np.uint32), probs_V, np.empty(0, np.float32), quantize=quantize
    )


def made(stream: Stream, order: int, smoothing: str = "modified-kneser-ney", **options: Any) -> NgramTable:
    plan = EstimationPlan(
        order, smoothing, 1.0, options.pop("prune", ()), stream.across_lines, options.pop("quantize", False)
    )
    text = np.asarray(stream.text)
    return estimate(plan, text, text[:0], eos=stream.eos, vocab_size=stream.vocab_size, **options)


def row_after(table: NgramTable, prefix: Sequence[int]) -> Array:
    """p(. | eos, prefix)."""
    state_O, row_V = np.empty(table.order, np.int64), np.empty(table.vocab_size, np.float32)
    begin(state_O, table.eos)
    walk(table.arrays, np.asarray(prefix, np.int64), state_O, -1 if table.across_lines else table.eos, table.absent)
    distribution(table.arrays, state_O, table.absent, row_V)
    return np.exp(row_V)


# Quantisation


def test_few_values_are_exact() -> None:
    values = np.random.default_rng(0).normal(size=BINS).astype(np.float32)
    values[:2] = -np.inf, 0
    probs_V = np.random.default_rng(1).choice(values, 3000)
    arrays = flat(probs_V, quantize=True)
    assert arrays.probs.dtype == np.uint8
    np.testing.assert_array_equal(probs_of(arrays), probs_V)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(BINS + 1, 4000), repeated=st.integers(0, 400))
def test_many_values_are_rounded_to_the_nearest_bin(seed: int, size: int, repeated: int) -> None:
    generator = np.random.default_rng(seed)
    probs_V = -generator.exponential(size=size + repeated).astype(np.float32)
    probs_V[generator.integers(0, len(probs_V), repeated)] = probs_V[0]
    found_V = probs_of(flat(probs_V, quantize=True))
    kept = np.unique(found_V)
    assert len(kept) <= BINS
    nearest_V = np.abs(probs_V[:, None] - kept).min(1)
    np.testing.assert_allclose(np.abs(found_V - probs_V), nearest_V, atol=1e-6)
    # The squared error is at most that of bins of equal width, with which the search for better ones starts.
    centres = np.linspace(probs_V.min(), probs_V.max(), BINS - (0 in probs_V))
    assert (nearest_V**2).mean() <= (np.abs(probs_V[:, None] - centres).min(1) ** 2).mean() + 1e-9


def test_probabilities_of_zero_and_one_stay_exact() -> None:
    probs_V = -np.random.default_rng(3).exponential(size=5000).astype(np.float32)
    probs_V[::7], probs_V[::11] = -np.inf, 0
    found_V = probs_of(flat(probs_V, quantize=True))
    np.testing.assert_array_equal(np.isneginf(found_V), np.isneginf(probs_V))
    assert (found_V[probs_V == 0] == 0).all()
    assert np.isfinite(found_V[np.isfinite(probs_V)]).all()


def test_each_level_has_its_own_bins() -> None:
    """A quantised model of a text: every number is close to the exact one, and the structure is unchanged."""
    stream = zipfian(300, 6000)
    exact, small = (made(stream, 4, quantize=quantize).arrays for quantize in (False, True))
    for name in ("starts", "words", "first_words", "first_groups", "first_steps"):
        np.testing.assert_array_equal(getattr(exact, name), getattr(small, name), err_msg=name)
    assert (small.probs.dtype, small.backoffs.dtype) == (np.uint8, np.uint8)
    assert (len(small.prob_table), len(small.backoff_table)) == (4 * BINS, 3 * BINS)
    for numbers_of in (probs_of, backoffs_of):
        difference = np.abs(numbers_of(exact) - numbers_of(small))
        assert difference.mean() < 0.01
        assert difference.max() < 0.5
    assert (probs_of(exact) != probs_of(small)).any()


def test_a_quantised_model_is_smaller_and_about_as_good(tmp_path: Path) -> None:
    stream = zipfian(300, 6000)
    tables = [made(stream, 4, quantize=quantize) for quantize in (False, True)]
    for number, table in enumerate(tables):
        table.save(tmp_path / str(number), {})
    exact, small = ((tmp_path / str(number)).stat().st_size for number in range(2))
    assert small < 0.7 * exact
    sums = [np.log(row_after(table, stream.text[:40])).mean() for table in tables]
    assert sums[1] == pytest.approx(sums[0], abs=0.02)
    assert row_after(tables[1], stream.text[:40]).sum() == pytest.approx(1, abs=0.02)


# Back-off weights as codes into a table


@pytest.mark.parametrize(("different", "dtype"), [(1, np.uint16), (MAX_CODES, np.uint16), (MAX_CODES + 1, np.float32)])
def test_back_off_weights_are_exact(different: int, dtype: Any) -> None:
    backoffs_Y = -np.arange(different, dtype=np.float32)[::-1].repeat(2)
    contexts = len(backoffs_Y)
    starts, first = np.array([0, contexts, contexts + 1]), np.full(contexts + 1, contexts, np.uint32)
    words, probs = np.append(np.arange(contexts), 0), np.zeros(contexts + 1, np.float32)
    arrays = pack(starts, words, first, probs, backoffs_Y)
    assert arrays.backoffs.dtype == dtype
    assert arrays.backoffs.nbytes + arrays.backoff_table.nbytes <= max(4 * contexts, 2 * contexts + 4 * different)
    np.testing.assert_array_equal(backoffs_of(arrays), backoffs_Y)


# Children


def three_levels(children: int, size: int) -> tuple[Array, Array, Array]:
    """Starts, words and first children of a trie: the first 200 words, and the pairs (0, word), have children."""
    pairs = 200 * children
    starts = np.cumsum([0, size, pairs, pairs])
    words = np.concatenate([np.arange(size), *[np.arange(children)] * 400])
    of_words = size + np.minimum(np.arange(size), 200) * children
    of_pairs = size + pairs + np.minimum(np.arange(pairs + 1), 200) * children
    return starts, words, np.concatenate([of_words, of_pairs]).astype(np.uint32)


@pytest.mark.parametrize(("children", "dtype"), [(1040, np.uint16), (1041, np.uint32), (2000, np.uint32)])
def test_many_children_of_neighbours_widen_the_steps(children: int, dtype: Any) -> None:
    """63 contexts with 1,040 children each are the most that two bytes can address."""
    starts, words, first_Y = three_levels(children, size=2048)
    probs_J = -np.arange(starts[-1], dtype=np.float32) / np.float32(starts[-1])
    arrays = pack(starts, words, first_Y, probs_J, np.zeros(starts[-2], np.float32))
    assert arrays.first_steps.dtype == dtype
    for node in [*range(0, 4096, 7), *range(2040, 2260), len(first_Y) - 1]:
        assert first_child(arrays.first_words, arrays.first_groups, arrays.first_steps, node) == first_Y[node]
    state_O = np.array([2, 199, 2048 + 199])  # after 0 and 199, whose children are the last nodes
    probs_T, depths_T = walk(arrays, np.array([children - 1]), state_O, -1, 0.0)
    assert (probs_T[0], depths_T[0]) == (probs_J[-1], 2)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_words_are_as_wide_as_the_vocabulary_needs(vocab_size: int, dtype: Any) -> None:
    last = vocab_size - 1
    table = made(Stream([last, 1, last, last, 1, 0], vocab_size, eos=0, across_lines=True), 2, "mle")
    assert table.arrays.words.dtype == dtype
    for word, after in {last: {1: 2 / 3, last: 1 / 3}, 1: {0: 0.5, last: 0.5}, 0: {last: 1.0}}.items():
        row_V = row_after(table, [word])
        assert dict(zip(row_V.nonzero()[0].tolist(), row_V[row_V > 0].tolist(), strict=True)) == pytest.approx(after)


# Pruning


@pytest.mark.parametrize("smoothing", INTERPOLATED)
@pytest.mark.parametrize("prune", [(0, 0, 1), (0, 1), (0, 1, 3), (0, 0, 0, 2), (0, 99)])
@pytest.mark.parametrize("across_lines", [False, True])
def test_pruning_keeps_the_other_ngrams_reachable(smoothing: str, prune: tuple[int, ...], across_lines: bool) -> None:
    stream = zipfian(12, 300, across_lines)
    table, formula = made(stream, 4, smoothing, prune=prune), reference(smoothing, stream, 4, prune=prune)
    thresholds = [0, *(prune[min(k, len(prune)) - 1] for k in (2, 3, 4))]
    kept = [sum(count > thresholds[k - 1] for count in stream.counts(k).values()) for k in (2, 3, 4)]
    assert table.sizes == [12, *kept]
    for length in range(0, 40, 3):
        prefix = stream.text[length : length + 5]
        np.testing.assert_allclose(row_after(table, prefix), np.array(formula.row_after(prefix), float), atol=2e-5)


def test_pruning_and_quantisation_combine() -> None:
    stream = zipfian(12, 300)
    formula = reference("kneser-ney", stream, 3, prune=(0, 1))
    table = made(stream, 3, "kneser-ney", prune=(0, 1), quantize=True)  # so few n-grams that the bins are exact
    for prefix in ([], stream.text[:2], [11, 11]):
        np.testing.assert_allclose(row_after(table, prefix), np.array(formula.row_after(prefix), float), atol=2e-5)


# The file


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("order", [1, 3])
def test_a_saved_table_is_identical_and_mapped(tmp_path: Path, order: int, quantize: bool) -> None:
    table = made(zipfian(40, 500, across_lines=True), order, "stupid-backoff", quantize=quantize)
    table.save(tmp_path / "t", {"more": np.arange(3)})
    loaded, others = load_table(tmp_path / "t")
    assert others["more"].tolist() == [0, 1, 2]
    for name, array in table.arrays._asdict().items():
        found = getattr(loaded.arrays, name)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array, err_msg=name)
        assert len(found) == 0 or isinstance(found.base, np.memmap)
    same = ("eos", "across_lines", "normalised", "absent", "order", "vocab_size", "sizes")
    assert [getattr(loaded, name) for name in same] == [getattr(table, name) for name in same]
    assert (loaded.normalised, loaded.absent) == (False, np.log10(0.4))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    message = f"{path} is not the file of an n-gram model; restore the original file of the run"
    for metadata in ({}, {"format": "chainrule n-grams 0"}, {"format": FORMAT}):
        write_arrays(path, {"embedding.weight": np.zeros((3, 2), np.float32)}, metadata)
        with pytest.raises(RunError) as caught:
            load_table(path)
        assert str(caught.value) == message


def test_numbers_of_a_quantised_table_are_read_one_by_one() -> None:
    """Outside the kernels too, where a code is a number of one byte."""
    table = made(zipfian(20, 400), 3, quantize=True)
    arrays, node = table.arrays, int(table.arrays.starts[2])
    assert value(arrays.probs, arrays.prob_table, 2, node) == arrays.prob_table[2 * BINS + int(arrays.probs[node])]
