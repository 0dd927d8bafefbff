"""Removing positions from a key-value cache gives the cache of the shorter prefixes and leaves other caches intact."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_cache import Checked, empty, some_pairs, within_groups


def remove_last(state: Checked, count: int) -> Checked:
    return Checked(state.cache.remove_last(count), state.pairs_R2HLE[:, :, :, : state.cache.length - count])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_state_of_growing_and_shrinking_keeps_its_past(data: st.DataObject) -> None:
    """Either all states are held or only the last few: positions that no state holds may be overwritten, others not."""
    states = [Checked(empty(batch := data.draw(st.integers(1, 2))), some_pairs(batch, 0))]
    held = data.draw(st.sampled_from([1, 2, 100]))
    for step in range(data.draw(st.integers(1, 14))):
        state = data.draw(st.sampled_from(states[-3:]))
        kind = data.draw(st.sampled_from(["longer", "longer", "shorter", "shorter", "beam"]))
        if kind == "longer":
            states.append(state.append(data.draw(st.sampled_from([1, 2, 5, 20])), step))
        elif kind == "shorter":
            states.append(remove_last(state, data.draw(st.integers(0, min(6, state.cache.length)))))
        else:
            choices = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
            states.append(state.select(within_groups(state.cache, choices, data.draw(st.integers(1, 3)))))
        del state
        states = states[-held:]
    for state in states:
        state.check()


def test_removed_positions_are_overwritten_unless_another_cache_holds_them() -> None:
    long = empty(1).append(some_pairs(1, 9))
    short = long.remove_last(4)
    assert short.buffer is long.buffer  # nothing is copied
    other = short.append(some_pairs(1, 2, seed=1))
    assert other.buffer is not long.buffer  # `long` still holds the positions
    assert torch.equal(torch.stack(long.keys_and_values(), 1), some_pairs(1, 9))
    del long
    assert short.append(some_pairs(1, 2, seed=1)).buffer is short.buffer
