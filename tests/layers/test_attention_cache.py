"""The cache of keys and values against rows that keep all of their past, and attention from it against loops.

Legend: R rows, A groups, W rows of a group, K chosen rows, T new positions, L positions so far, N stored, C room,
H heads, E width of a head.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.self_attention import FIRST_ROOM, KeyValueCache, attend, causal_mask
from chainrule.types import detach_state, select_rows

H, E, WINDOW = 2, 4, 200
LIKE = torch.empty(0, dtype=torch.float64)


def empty(batch: int) -> KeyValueCache:
    return KeyValueCache.empty(batch, H, WINDOW, E, LIKE)


def some_pairs(rows: int, new: int, seed: int = 0) -> Tensor:
    """Random keys and values, R2HTE."""
    return torch.randn(rows, 2, H, new, E, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def groups_of(cache: KeyValueCache) -> int:
    return len(cache.pairs_AC2HE)


def within_groups(cache: KeyValueCache, choices: list[int], width: int) -> Tensor:
    """`width` rows of each group, taken by turns from the choices, as a beam takes them."""
    turns = itertools.cycle(choices)
    chosen = [
        [group * cache.rows + next(turns) % cache.rows for _ in range(width)] for group in range(groups_of(cache))
    ]
    return torch.tensor(chosen).flatten()


# Against rows that keep all of their past


class Told(NamedTuple):
    """A cache, and what it should hold, each row with a copy of its own."""

    cache: KeyValueCache
    pairs_R2HLE: Tensor

    def check(self) -> None:
        assert self.cache.length == self.pairs_R2HLE.shape[3]
        assert torch.equal(torch.stack(self.cache.filled(), 1), self.pairs_R2HLE)

    def longer(self, new: int, seed: int) -> Told:
        pairs_R2HTE = some_pairs(len(self.pairs_R2HLE), new, seed)
        return Told(self.cache.append(pairs_R2HTE), torch.cat([self.pairs_R2HLE, pairs_R2HTE], 3))

    def chosen(self, row_K: Tensor) -> Told:
        return Told(select_rows(self.cache, row_K), self.pairs_R2HLE[row_K])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_state_of_any_walk_holds_its_own_past(data: st.DataObject) -> None:
    """A walk goes on from any of its states, so states share buffers, part, and write where another has written."""
    states = [Told(empty(batch := data.draw(st.integers(1, 3))), some_pairs(batch, 0))]
    for step in range(data.draw(st.integers(1, 12))):
        state = data.draw(st.sampled_from(states[-3:]))
        choices = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=6))
        kind = data.draw(st.sampled_from(["longer", "longer", "beam", "any"]))
        if kind == "longer":
            states.append(state.longer(data.draw(st.sampled_from([1, 1, 2, 7, 20])), step))
        elif kind == "beam":
            states.append(state.chosen(within_groups(state.cache, choices, data.draw(st.integers(1, 4)))))
        else:
            states.append(state.chosen(torch.tensor(choices) % len(state.pairs_R2HLE)))
    for state in states:
        state.check()


def test_a_long_beam_holds_its_past() -> None:
    state = Told(empty(2), some_pairs(2, 0)).longer(3, 0)
    state = state.chosen(torch.arange(2).repeat_interleave(4))
    choices = torch.randint(0, 4, (60, 8), generator=torch.Generator().manual_seed(1)).tolist()
    for step in range(60):
        state = state.longer(1, step).chosen(within_groups(state.cache, choices[step], 4))
        state.check()
    assert state.cache.rows == 4
    state.chosen(torch.tensor([1, 6])).longer(1, 0).check()


def test_detaching_changes_nothing() -> None:
    state = Told(empty(2), some_pairs(2, 0)).longer(3, 0).chosen(torch.tensor([0, 0, 1, 1])).longer(1, 1)
    Told(detach_state(state.cache), state.pairs_R2HLE).check()


# What is moved, and when


def test_the_first_to_write_writes_in_place_and_any_other_copies() -> None:
    short = empty(2).append(some_pairs(2, 3))
    first, second = short.append(some_pairs(2, 1, seed=1)), short.append(some_pairs(2, 1, seed=2))
    assert first.pairs_AC2HE is short.pairs_AC2HE
    assert second.pairs_AC2HE is not short.pairs_AC2HE
    assert torch.equal(first.filled()[0][:, :, -1], some_pairs(2, 1, seed=1)[:, 0, :, 0])


def test_the_room_of_a_row_doubles_up_to_the_window() -> None:
    cache, rooms = empty(1), []
    for _ in range(WINDOW):
        cache = cache.append(some_pairs(1, 1))
        rooms.append(cache.pairs_AC2HE.shape[1])
    assert [room for room, _ in itertools.groupby(rooms)] == [FIRST_ROOM, 66, 134, WINDOW]
    assert KeyValueCache.empty(1, H, 5, E, LIKE).pairs_AC2HE.shape[1] == 5


def test_reordering_a_beam_moves_nothing() -> None:
    start = empty(3).append(some_pairs(3, 1))
    cache = select_rows(start, torch.arange(3).repeat_interleave(5))
    for step in range(6):
        cache = cache.append(some_pairs(15, 1, step))
        cache = select_rows(cache, within_groups(cache, [3, 0, 0, 4, 1], 5))
        assert cache.pairs_AC2HE is start.pairs_AC2HE
    assert (cache.rows, cache.length, cache.stored) == (5, 7, 31)


def test_what_no_row_has_any_more_makes_room() -> None:
    cache = select_rows(empty(2).append(some_pairs(2, 1)), torch.arange(2).repeat_interleave(5))
    for step in range(100):
        cache = select_rows(cache.append(some_pairs(10, 1, step)), within_groups(cache, [2], 5))
    assert cache.length == 101
    assert cache.rows == 5
    assert cache.pairs_AC2HE.shape[1] <= 2 * (101 + 5)  # with a copy for each row it would be over 500


def test_rows_that_have_parted_for_good_become_groups() -> None:
    state = Told(empty(2), some_pairs(2, 0)).longer(4, 0).chosen(torch.arange(2).repeat_interleave(3))
    for step in range(30):
        state = state.longer(1, step)
    state.check()
    assert (groups_of(state.cache), state.cache.rows, state.cache.stored) == (6, 1, 34)


def test_many_rows_of_one_part_at_once() -> None:
    """Each row of a wide choice attends to its own past and not, behind a mask, to that of all others."""
    state = Told(empty(1), some_pairs(1, 0)).longer(4, 0).chosen(torch.zeros(40, dtype=torch.int64)).longer(1, 1)
    state.check()
    assert state.cache.rows == 1


# Attention from a cache


def loops(query_E: Tensor, keys_LE: Tensor, values_LE: Tensor, bias_L: Tensor) -> Tensor:
    """One query's attention to the positions that have come so far, E."""
    shares = [math.exp(float(query_E @ keys_LE[s]) / math.sqrt(E) + float(bias_L[s])) for s in range(len(keys_LE))]
    return sum((share / sum(shares) * values_LE[s] for s, share in enumerate(shares)), torch.zeros(E).double())


class Walk:
    """Attention from a cache, and the queries, keys and values of each row from the beginning on."""

    def __init__(self, batch: int, rotary: Rotary | None, bias_HCC: Tensor | None) -> None:
        self.cache, self.rotary, self.bias_HCC = empty(batch), rotary, bias_HCC
        self.parts_R3HLE = torch.empty(batch, 3, H, 0, E, dtype=torch.float64)

    def step(self, new: int, seed: int) -> None:
        """Read `new` more positions of each row, and compare."""
        rows, before = len(self.parts_R3HLE), self.cache.length
        generator = torch.Generator().manual_seed(seed)
        projected_RTX = torch.randn(rows, new, 3 * H * E, generator=generator, dtype=torch.float64)
        mask = None
        if self.bias_HCC is not None:
            mask = self.bias_HCC[None, :, before : before + new, : before + new]
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
        bias_L = torch.zeros(place + 1) if self.bias_HCC is None else self.bias_HCC[h, place, : place + 1]
        return loops(query_LE[place], key_LE, value_LE, bias_L)

    def choose(self, row_K: Tensor) -> None:
        self.cache, self.parts_R3HLE = select_rows(self.cache, row_K), self.parts_R3HLE[row_K]


@pytest.mark.parametrize("kind", ["plain", "rotary", "biased"])
def test_attention_from_a_cache_is_attention_to_the_whole_prefix(kind: str) -> None:
    bias_HCC = torch.randn(H, 40, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    bias_HCC = bias_HCC.masked_fill(~causal_mask(40, 0, bias_HCC.device), -math.inf)
    walk = Walk(2, Rotary(40, E).double() if kind == "rotary" else None, bias_HCC if kind == "biased" else None)
    walk.step(3, 0)
    walk.step(1, 1)
    walk.step(2, 2)  # several after others, each row alone
    walk.choose(torch.arange(2).repeat_interleave(3))
    for seed, choices in enumerate(([0, 0, 2], [1, 2, 1], [2, 1, 0], [0, 1, 1]), start=3):
        walk.step(1, seed)
        walk.choose(within_groups(walk.cache, choices, 3))
    walk.step(3, 7)  # several at once of rows that share a past
    walk.choose(within_groups(walk.cache, [1], 3))
    walk.step(2, 8)  # which no longer fit
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
