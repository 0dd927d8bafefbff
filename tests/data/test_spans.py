"""Span corruption against its definition: source and target together restore the text."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.data.batches import BlockBatches
from chainrule.data.spans import SpanBatches, corrupt
from chainrule.errors import ConfigError, DataError

EOS, FIRST = 0, 1000


def restored(source: list[int], target: list[int]) -> list[int]:
    """The text of a source and a target, by a loop over both."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token >= FIRST:
            spans[token] = []
        else:
            spans[max(spans)].append(token)
    return list(itertools.chain.from_iterable(spans[token] if token >= FIRST else [token] for token in source))


def corrupted(length: int, noise: float, mean_span: float, seed: int) -> tuple[list[int], list[int], list[int]]:
    text = np.random.default_rng(seed).integers(1, 50, length)
    source, target = corrupt(text, noise, mean_span, np.random.default_rng(seed), FIRST)
    return text.tolist(), source.tolist(), target.tolist()


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.floats(1, 10), st.integers(0, 2**32))
def test_source_and_target_restore_the_text(length: int, noise: float, mean_span: float, seed: int) -> None:
    text, source, target = corrupted(length, noise, mean_span, seed)
    assert restored(source, target) == text

    masked = min(max(round(length * noise), 1), length - 1)
    spans = min(max(round(masked / mean_span), 1), masked, length - masked)
    sentinels = list(range(FIRST, FIRST + spans + 1))
    assert [token for token in source if token >= FIRST] == sentinels[:-1]
    assert [token for token in target if token >= FIRST] == sentinels
    assert len(source) == length - masked + spans
    assert len(target) == masked + spans + 1


@given(st.integers(2, 300), st.integers(0, 2**32))
def test_spans_are_never_empty_nor_adjacent_and_the_first_token_is_kept(length: int, seed: int) -> None:
    text, source, target = corrupted(length, 0.5, 1.5, seed)
    assert source[0] == text[0]
    assert target[-1] >= FIRST
    for side in (source, target):
        assert not any(a >= FIRST and b >= FIRST for a, b in itertools.pairwise(side))


def test_the_published_shares_of_a_block_of_512() -> None:
    """77 of 512 tokens in 26 spans."""
    _, source, target = corrupted(512, 0.15, 3.0, 1)
    assert (len(source), len(target)) == (512 - 77 + 26, 77 + 26 + 1)


def test_all_positions_of_the_spans_are_equally_likely() -> None:
    """Of 9 tokens, 4 are masked in 2 spans: 3 ways to cut the 4, times 4 ways to cut the other 5."""
    rng, text = np.random.default_rng(0), np.arange(1, 10)
    seen = Counter(tuple(corrupt(text, 4 / 9, 2.0, rng, FIRST)[0].tolist()) for _ in range(6000))
    # A twelfth of 6000 draws is 500, with a standard deviation of 21.
    assert len(seen) == 12
    assert all(abs(times - 500) < 5 * 21 for times in seen.values())


# Batches


def make(count: int = 400, rows: int = 4, length: int = 40, **options: Any) -> SpanBatches:
    tokens = np.arange(100, 100 + count, dtype=np.uint16)
    known = {"eos": EOS, "seed": 3, "noise": 0.3, "mean_span": 2.0, "sentinels": 20}
    return SpanBatches(tokens, rows, length, **{"first_sentinel": FIRST, **known, **options})


def test_batches_are_the_blocks_of_the_text_with_spans_masked() -> None:
    made = make()
    blocks = BlockBatches(np.arange(100, 500, dtype=np.uint16), 4, 40, eos=EOS, seed=3)
    assert made.per_epoch == blocks.per_epoch
    for index in range(2 * made.per_epoch):
        batch, fresh = made.batch(index)
        assert fresh
        assert batch.source is not None
        assert batch.weights_BT is None
        assert batch.source.mask_BS.all()
        assert (batch.source.tokens_BS[:, -1] == EOS).all()
        assert (batch.targets_BT[:, -1] == EOS).all()
        shifted_BT = torch.cat([torch.full((4, 1), EOS), batch.targets_BT[:, :-1]], 1)
        assert torch.equal(batch.inputs_BT, shifted_BT)
        pairs = zip(batch.source.tokens_BS[:, :-1].tolist(), batch.targets_BT[:, :-1].tolist(), strict=True)
        assert [restored(*pair) for pair in pairs] == blocks.batch(index)[0].inputs_BT.tolist()


def assert_same(one: Any, other: Any) -> None:
    for a, b in (
        (one.inputs_BT, other.inputs_BT),
        (one.targets_BT, other.targets_BT),
        (one.source[0], other.source[0]),
    ):
        assert torch.equal(a, b)


def test_a_batch_is_a_function_of_its_number() -> None:
    straight = [make().batch(index)[0] for index in range(5)]
    made = make()
    for index in (4, 0, 3, 3, 1, 2):
        assert_same(made.batch(index)[0], straight[index])


def test_each_row_batch_epoch_and_seed_has_other_spans() -> None:
    def sentinels(index: int, row: int = 0, **options: Any) -> list[bool]:
        source = make(count=101, rows=2, length=50, **options).batch(index)[0].source
        assert source is not None
        return (source.tokens_BS[row] >= FIRST).tolist()

    found = [sentinels(0), sentinels(0, row=1), sentinels(1), sentinels(2), sentinels(0, seed=4)]
    assert all(a != b for a, b in itertools.combinations(found, 2))


def test_one_sentinel_more_than_spans_is_enough() -> None:
    batch, _ = make(sentinels=7).batch(0)  # 12 of 40 tokens in 6 spans
    assert int(batch.targets_BT.max()) == FIRST + 6
    with pytest.raises(ConfigError) as caught:
        make(sentinels=6)
    assert str(caught.value) == (
        "a block of 40 tokens has 6 masked spans, which need 7 sentinels, but the model has 6; raise model.sentinels, "
        "or choose a shorter training.length, a lower objective.noise or a longer objective.mean_span"
    )


def test_a_text_too_short_to_mask_is_an_error() -> None:
    with pytest.raises(DataError) as caught:
        make(count=2)
    assert str(caught.value) == (
        "a block of 1 token is too short to mask one and keep one; give more text, or a training.length of at least 2"
    )
