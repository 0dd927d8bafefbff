"""The key-value cache against rows that each keep a copy of their past, and attention with it against loops."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chainrule.layers.attention.dot_product import causal_mask
from chainrule.layers.attention.kv_cache import INITIAL_CAPACITY, KeyValueCache
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.self_attention import attend
from chainrule.types import detach_state, select_rows

H, E, WINDOW = 2, 4, 200
LIKE = torch.empty(0, dtype=torch.float64)


def empty(batch: int) -> KeyValueCache:
    return KeyValueCache.empty(batch, H, WINDOW, E, LIKE)


def some_pairs(rows: int, new: int, seed: int = 0) -> Tensor:
    """Random keys and values, R2HTE."""
    return torch.randn(rows, 2, H, new, E, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def group_count(cache: KeyValueCache) -> int:
    return len(cache.buffer)


def within_groups(cache: KeyValueCache, choices: list[int], width: int) -> Tensor:
    """`width` rows of each group, taken in turn from the choices, as a beam search selects them."""
    turns = itertools.cycle(choices)
    chosen = [
        [group * cache.rows + next(turns) % cache.rows for _ in range(width)] for group in range(group_count(cache))
    ]
    return torch.tensor(chosen).flatten()


# Against rows that keep a copy of their past


class Checked(NamedTuple):
    """A cache, and the keys and values it should hold, a copy per row."""

    cache: KeyValueCache
    pairs_R2HLE: Tensor

    def check(self) -> None:
        assert self.cache.length == self.pairs_R2HLE.shape[3]
        assert torch.equal(torch.stack(self.cache.keys_and_values(), 1), self.pairs_R2HLE)

    def append(self, new: int, seed: int) -> Checked:
        pairs_R2HTE = some_pairs(len(self.pairs_R2HLE), new, seed)
        return Checked(self.cache.append(pairs_R2HTE), torch.cat([self.pairs_R2HLE, pairs_R2HTE], 3))

    def select(self, row_K: Tensor) -> Checked:
        return Checked(select_rows(self.cache, row_K), self.pairs_R2HLE[row_K])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_state_of_any_sequence_of_changes_keeps_its_past(data: st.DataObject) -> None:
    """Each change starts from any earlier state, so states share buffers, separate, and write at the same place."""
    states = [Checked(empty(batch := data.draw(st.integers(1, 3))), some_pairs(batch, 0))]
    for step in range(data.draw(st.integers(1, 12))):
        state = data.draw(st.sampled_from(states[-3:]))
        choices = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=6))
        kind = data.draw(st.sampled_from(["longer", "longer", "beam", "any"]))
        if kind == "longer":
            states.append(state.append(data.draw(st.sampled_from([1, 1, 2, 7, 20])), step))
        elif kind == "beam":
            states.append(state.select(within_groups(state.cache, choices, data.draw(st.integers(1, 4)))))
        else:
            states.append(state.select(torch.tensor(choices) % len(state.pairs_R2HLE)))
    for state in states:
        state.check()


def test_a_long_beam_keeps_its_past() -> None:
    state = Checked(empty(2), some_pairs(2, 0)).append(3, 0)
    state = state.select(torch.arange(2).repeat_interleave(4))
    choices = torch.randint(0, 4, (60, 8), generator=torch.Generator().manual_seed(1)).tolist()
    for step in range(60):
        state = state.append(1, step).select(within_groups(state.cache, choices[step], 4))
        state.check()
    assert state.cache.rows == 4
    state.select(torch.tensor([1, 6])).append(1, 0).check()


def test_detaching_changes_nothing() -> None:
    state = Checked(empty(2), some_pairs(2, 0)).append(3, 0).select(torch.tensor([0, 0, 1, 1])).append(1, 1)
    Checked(detach_state(state.cache), state.pairs_R2HLE).check()


# When the buffer is copied


def test_the_first_cache_writes_in_place_and_others_copy() -> None:
    short = empty(2).append(some_pairs(2, 3))
    first, second = short.append(some_pairs(2, 1, seed=1)), short.append(some_pairs(2, 1, seed=2))
    assert first.buffer is short.buffer
    assert second.buffer is not short.buffer
    assert torch.equal(first.keys_and_values()[0][:, :, -1], some_pairs(2, 1, seed=1)[:, 0, :, 0])


def test_the_capacity_doubles_up_to_the_window() -> None:
    cache, capacities = empty(1), []
    for _ in range(WINDOW):
        cache = cache.append(some_pairs(1, 1))
        capacities.append(cache.buffer.shape[1])
    assert [capacity for capacity, _ in itertools.groupby(capacities)] == [INITIAL_CAPACITY, 66, 134, WINDOW]
    assert KeyValueCache.empty(1, H, 5, E, LIKE).buffer.shape[1] == 5


def test_reordering_a_beam_moves_nothing() -> None:
    start = empty(3).append(some_pairs(3, 1))
    cache = select_rows(start, torch.arange(3).repeat_interleave(5))
    for step in range(6):
        cache = cache.append(some_pairs(15, 1, step))
        cache = select_rows(cache, within_groups(cache, [3, 0, 0, 4, 1], 5))
        assert cache.buffer is start.buffer
    assert (cache.rows, cache.length, cache.stored) == (5, 7, 31)


def test_positions_without_an_owner_are_removed() -> None:
    cache = select_rows(empty(2).append(some_pairs(2, 1)), torch.arange(2).repeat_interleave(5))
    for step in range(100):
        cache = select_rows(cache.append(some_pairs(10, 1, step)), within_groups(cache, [2], 5))
    assert cache.length == 101
    assert cache.rows == 5
    assert cache.buffer.shape[1] <= 2 * (101 + 5)  # with a copy per row it would be over 500


def test_rows_without_a_common_past_become_groups() -> None:
    state = Checked(empty(2), some_pairs(2, 0)).append(4, 0).select(torch.arange(2).repeat_interleave(3))
    for step in range(30):
        state = state.append(1, step)
    state.check()
    assert (group_count(state.cache), state.cache.rows, state.cache.stored) == (6, 1, 34)


def test_many_rows_of_one_prefix_become_groups() -> None:
    """Each row of a wide selection attends to its own past instead of masking the past of all others."""
    state = Checked(empty(1), some_pairs(1, 0)).append(4, 0).select(torch.zeros(40, dtype=torch.int64)).append(1, 1)
    state.check()
    assert state.cache.rows == 1


# Attention with a cache


def loops(query_E: Tensor, keys_LE: Tensor, values_LE: Tensor, bias_L: Tensor) -> Tensor:
    """The attention of one query to the positions so far, E."""
    shares = [math.exp(float(query_E @ keys_LE[s]) / math.sqrt(E) + float(bias_L[s])) for s in range(len(keys_LE))]
    return sum((share / sum(shares) * values_LE[s] for s, share in enumerate(shares)), torch.zeros(E).double())


class Walk:
    """Attention with a cache, and the queries, keys and values of each row from the beginning."""

    def __init__(self, batch: int, rotary: Rotary | None, bias_HLL: Tensor | None) -> None:
        self.cache, self.rotary, self.bias_HLL = empty(batch), rotary, bias_HLL
        self.parts_R3HLE = torch.empty(batch, 3, H, 0, E, dtype=torch.float64)

    def step(self, new: int, seed: int) -> None:
        """Read `new` more positions of each row and compare."""
        rows, before = len(self.parts_R3HLE), self.cache.length
        generator = torch.Generator().manual_seed(seed)
        projected_RTX = torch.randn(rows, new, 3 * H * E, generator=generator, dtype=torch.float64)
        mask = None
        if self.bias_HLL is not None:
            mask = self.bias_HLL[None, :, before : before + new, : before + new]
        mixed_ND, self.cache = attend(projected_RTX.flatten(0, 1), rows, H, self.cache, self.rotary, mask=mask)
        parts_R3HTE = projected_RTX.view(rows, new, 3, H, E).permute(0, 2, 3, 1, 4)
        self.parts_R3HLE = torch.cat([self.parts_R3HLE, parts_R3HTE], 3)
        mixed_RTHE = mixed_ND.view(rows, new, H, E)
        for row, t, h in itertools.product(range(rows), range(new), range(H)):
            torch.testing.assert_close(mixed_RTHE[row, t, h], self.expected(row, h, before + t))

    def expected(self, row: int, h: int, place: int) -> Tensor:
        query_LE, key_LE, value_LE = self.parts_R3HLE[row, :, h, : place + 1]
        if self.rotary is not None:
            query_LE, key_LE = (self.rotary(part_LE[None, None], 0)[0, 0] for part_LE in (query_LE, key_LE))
        bias_L = torch.zeros(place + 1) if self.bias_HLL is None else self.bias_HLL[h, place, : place + 1]
        return loops(query_LE[place], key_LE, value_LE, bias_L)

    def choose(self, row_K: Tensor) -> None:
        self.cache, self.parts_R3HLE = select_rows(self.cache, row_K), self.parts_R3HLE[row_K]


@pytest.mark.parametrize("kind", ["plain", "rotary", "biased"])
def test_attention_with_a_cache_equals_attention_to_the_whole_prefix(kind: str) -> None:
    bias_HLL = torch.randn(H, 40, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    bias_HLL = bias_HLL.masked_fill(~causal_mask(40, 0, bias_HLL.device), -math.inf)
    walk = Walk(2, Rotary(40, E).double() if kind == "rotary" else None, bias_HLL if kind == "biased" else None)
    walk.step(3, 0)
    walk.step(1, 1)
    walk.step(2, 2)  # several positions at once, separate rows
    walk.choose(torch.arange(2).repeat_interleave(3))
    for seed, choices in enumerate(([0, 0, 2], [1, 2, 1], [2, 1, 0], [0, 1, 1]), start=3):
        walk.step(1, seed)
        walk.choose(within_groups(walk.cache, choices, 3))
    walk.step(3, 7)  # several positions at once of rows that share a past
    walk.choose(within_groups(walk.cache, [1], 3))
    walk.step(2, 8)  # exceeds the capacity
    assert walk.cache.rows == 3
    walk.choose(torch.tensor([0, 3, 4]))
    walk.step(1, 9)
    assert walk.cache.rows == 1
    assert walk.cache.length == 16


def test_attention_without_a_cache_is_the_same() -> None:
    projected_NX = torch.randn(2 * 9, 3 * H * E, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole_ND, none = attend(projected_NX, 2, H, None)
    cached_ND, cache = attend(projected_NX, 2, H, empty(2))
    assert none is None
    assert cache is not None
    assert cache.length == 9
    torch.testing.assert_close(cached_ND, whole_ND)
