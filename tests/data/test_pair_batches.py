"""Rows of two stores as pairs, which of them are kept, and batches of similar length."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch

from chainrule.data.pairs import PairBatches, PairStore, filter_pairs, pair_batch, pair_stores
from chainrule.data.store import open_store
from chainrule.errors import ConfigError, DataError
from chainrule.text import text_of, train_tokenizer

TOKENIZER = train_tokenizer("char", text_of("abcdefghij0123456789\n"))
EOS = TOKENIZER.eos


def store_of(source: str, target: str) -> PairStore:
    stores = [open_store(text_of(text), TOKENIZER) for text in (source, target)]
    return pair_stores(stores[0], stores[1], eos=(EOS, EOS), names=("a.src", "a.tgt"))


def lines(texts: list[str]) -> str:
    return "".join(text + "\n" for text in texts)


def numbered(count: int, seed: int = 0) -> PairStore:
    """Pairs that contain their number, with the lengths of sentences: the target about as long as the source."""
    rng = random.Random(seed)
    sources, targets = [], []
    for number in range(count):
        length = max(4, round(rng.lognormvariate(2.6, 0.4)))
        sources.append(f"{number:04d}".ljust(length, "a"))
        targets.append(f"{number:04d}".ljust(max(4, round(length * rng.uniform(0.8, 1.3))), "b"))
    return store_of(lines(sources), lines(targets))


def decoded(tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> list[str]:
    return [TOKENIZER.decode(row[held].tolist()) for row, held in zip(tokens_BT, mask_BT > 0, strict=True)]


def epoch(batches: PairBatches, number: int) -> list[list[int]]:
    """The indices of the pairs in each batch of an epoch."""
    found = []
    for index in range(batches.per_epoch):
        batch, fresh = batches.batch(number * batches.per_epoch + index)
        assert fresh
        assert batch.source is not None
        indices = [int(row[:4]) for row in decoded(*batch.source)]
        assert batch.weights_BT is not None
        assert [int(row[:4]) for row in decoded(batch.targets_BT, batch.weights_BT)] == indices
        found.append(indices)
    return found


# Pairs


def test_a_batch_reads_eos_and_the_target() -> None:
    batch = pair_batch(store_of("a\nbcd\n", "efg\nh\n"), np.array([0, 1]))
    e, f, g, h = TOKENIZER.encode("efgh")
    assert batch.inputs_BT.tolist() == [[EOS, e, f, g], [EOS, h, EOS, EOS]]
    assert batch.targets_BT.tolist() == [[e, f, g, EOS], [h, EOS, EOS, EOS]]
    assert batch.weights_BT is not None
    assert batch.weights_BT.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.source is not None
    assert decoded(*batch.source) == ["a\n", "bcd\n"]


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("a\nb\nc\n", "a\nb\n", "a.src has 3 lines and a.tgt has 2: line 3 of a.src has no partner"),
        ("a\n", "a\n\nc", "a.src has 1 line and a.tgt has 3: line 2 of a.tgt has no partner"),
    ],
)
def test_files_of_unequal_length_are_an_error_that_names_the_line(source: str, target: str, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        store_of(source, target)
    assert str(error.value) == f"{sentence}; expected two files that match line by line."


def test_a_pair_store_knows_both_texts() -> None:
    one, other = store_of("a\n", "b\n"), store_of("a\n", "c\n")
    assert one.fingerprint.split("+")[0] == other.fingerprint.split("+")[0]
    assert one.fingerprint != other.fingerprint


SOME = ["a", "", "abcd", "abcde", "ab", "abc"]
OTHERS = ["b", "b", "b", "ab", "", "a"]


@pytest.mark.parametrize(
    ("max_length", "max_ratio", "kept", "counts"),
    [
        (None, None, [0, 2, 3, 5], (2, 0, 0)),
        (4, None, [0, 2, 5], (2, 1, 0)),
        (3, None, [0, 5], (2, 2, 0)),
        (None, 2.5, [0, 3], (2, 0, 2)),
        (4, 3, [0, 5], (2, 1, 1)),
    ],
)
def test_pairs_are_left_out_for_one_reason_each(
    max_length: int | None, max_ratio: float | None, kept: list[int], counts: tuple[int, int, int]
) -> None:
    store = store_of(lines(SOME), lines(OTHERS))
    found = filter_pairs(store, np.arange(6), max_length=max_length, max_ratio=max_ratio)
    assert found.indices_P.tolist() == kept
    assert (found.empty, found.long, found.uneven) == counts


def test_the_summary_counts_what_is_left_out() -> None:
    store = store_of(lines(SOME), lines(OTHERS))
    found = filter_pairs(store, np.arange(6), max_length=4, max_ratio=3.0)
    assert found.summary == ("2 pairs; left out: 2 with an empty side, 1 too long, 1 of too unequal lengths")
    assert filter_pairs(store, np.array([0, 3]), max_length=9, max_ratio=None).summary == ""


def test_only_the_given_pairs_are_filtered() -> None:
    store = store_of(lines(SOME), lines(OTHERS))
    found = filter_pairs(store, np.array([4, 3, 0]), max_length=None, max_ratio=None)
    assert (found.indices_P.tolist(), found.empty) == ([3, 0], 1)


def test_nothing_left_is_an_error() -> None:
    store = store_of("\nabcd\n", "a\nabcd\n")
    with pytest.raises(DataError) as error:
        filter_pairs(store, np.arange(2), max_length=3, max_ratio=None)
    assert str(error.value) == (
        "all 2 pairs are left out: 1 with an empty side, 1 too long; give other pairs, or raise data.max_length and "
        "data.max_ratio."
    )


# Batches


def test_every_pair_comes_once_per_epoch() -> None:
    store = numbered(300)
    indices_P = np.arange(300)[::2]
    batches = PairBatches(store, indices_P, 200, seed=1)
    for number in range(3):
        seen = Counter(pair for batch in epoch(batches, number) for pair in batch)
        assert seen == Counter(indices_P.tolist())


def test_a_batch_is_a_function_of_its_number() -> None:
    store = numbered(120)
    forward, other = (PairBatches(store, np.arange(120), 150, seed=1) for _ in range(2))
    order = list(range(2 * forward.per_epoch))
    in_order = {index: forward.batch(index)[0] for index in order}
    random.Random(0).shuffle(order)
    for index in order:
        for one, same in zip(in_order[index][:3], other.batch(index)[0][:3], strict=True):
            assert torch.equal(one, same)  # type: ignore[arg-type]


def test_batches_come_in_another_order_each_epoch_and_with_each_seed() -> None:
    store = numbered(200)
    batches = PairBatches(store, np.arange(200), 100, seed=1)
    assert epoch(batches, 0) != epoch(batches, 1)
    assert sorted(map(len, epoch(batches, 0))) == sorted(map(len, epoch(batches, 1)))
    assert epoch(PairBatches(store, np.arange(200), 100, seed=2), 0) != epoch(batches, 0)
    plain = PairBatches(store, np.arange(200), 100, seed=1, shuffled=False)
    in_order = (plain.batch(index)[0] for index in range(plain.per_epoch))
    longest = [max(one.targets_BT.shape[1], one.source.tokens_BS.shape[1]) for one in in_order]  # type: ignore[union-attr]
    assert longest == sorted(longest)


def test_pairs_of_equal_lengths_are_batched_differently_in_each_epoch() -> None:
    store = store_of(lines([f"{number:04d}" for number in range(40)]), lines([f"{number:04d}" for number in range(40)]))
    batches = PairBatches(store, np.arange(40), 50, seed=1)
    mates = [{frozenset(batch) for batch in epoch(batches, number)} for number in range(2)]
    assert not mates[0] & mates[1]


@pytest.mark.parametrize("max_tokens", [80, 200, 1000])
def test_no_batch_has_more_than_max_tokens_and_few_have_much_less(max_tokens: int) -> None:
    store = numbered(400)
    batches = PairBatches(store, np.arange(400), max_tokens, seed=1)
    sizes = []
    for index in range(batches.per_epoch):
        batch, _ = batches.batch(index)
        assert batch.source is not None
        rows, longest = len(batch.targets_BT), max(batch.targets_BT.shape[1], batch.source.tokens_BS.shape[1])
        assert rows * longest <= max_tokens
        sizes.append((rows + 1) * longest)
    assert np.mean([size > max_tokens for size in sizes]) > 0.8  # one more pair of that length would not fit


def test_little_of_a_batch_is_padding() -> None:
    store = numbered(3000)
    batches = PairBatches(store, np.arange(3000), 1024, seed=1)
    used = total = 0
    for index in range(batches.per_epoch):
        batch, _ = batches.batch(index)
        assert batch.source is not None
        assert batch.weights_BT is not None
        used += int(batch.weights_BT.sum()) + int(batch.source.mask_BS.sum())
        total += batch.weights_BT.numel() + batch.source.mask_BS.numel()
    assert batches.padding == pytest.approx(1 - used / total)
    assert batches.padding < 0.1


def test_a_pair_longer_than_a_batch_is_an_error() -> None:
    with pytest.raises(ConfigError) as error:
        PairBatches(store_of("a\nabcdef\n", "abc\na\n"), np.arange(2), 6, seed=1)
    assert str(error.value) == (
        "training.max_tokens is 6, but the longest pair has 7 tokens with its <eos>; raise it, or leave long pairs out "
        "with data.max_length"
    )
    assert PairBatches(store_of("a\nabcdef\n", "abc\na\n"), np.arange(2), 7, seed=1).per_epoch == 2
