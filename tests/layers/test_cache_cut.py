"""A cache that is cut is the cache of the shorter prefixes, and nobody who holds another sees it write.

Legend: R rows, T new positions, H heads, E width of a head.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention_cache import Told, empty, some_pairs, within_groups


def cut(told: Told, count: int) -> Told:
    return Told(told.cache.cut(count), told.pairs_R2HLE[:, :, :, : told.cache.length - count])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_state_of_a_walk_that_goes_back_holds_its_own_past(data: st.DataObject) -> None:
    """All states, or the last few alone, are held: what is forgotten may be written over, what is held may not."""
    states = [Told(empty(batch := data.draw(st.integers(1, 2))), some_pairs(batch, 0))]
    held = data.draw(st.sampled_from([1, 2, 100]))
    for step in range(data.draw(st.integers(1, 14))):
        state = data.draw(st.sampled_from(states[-3:]))
        kind = data.draw(st.sampled_from(["longer", "longer", "cut", "cut", "beam"]))
        if kind == "longer":
            states.append(state.longer(data.draw(st.sampled_from([1, 2, 5, 20])), step))
        elif kind == "cut":
            states.append(cut(state, data.draw(st.integers(0, min(6, state.cache.length)))))
        else:
            choices = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
            states.append(state.chosen(within_groups(state.cache, choices, data.draw(st.integers(1, 3)))))
        del state
        states = states[-held:]
    for state in states:
        state.check()


def test_what_nobody_holds_is_written_over_and_what_is_held_is_copied() -> None:
    long = empty(1).append(some_pairs(1, 9))
    short = long.cut(4)
    assert short.pairs_AC2HE is long.pairs_AC2HE  # nothing was moved
    aside = short.append(some_pairs(1, 2, seed=1))
    assert aside.pairs_AC2HE is not long.pairs_AC2HE  # `long` still has what stands there
    assert torch.equal(torch.stack(long.filled(), 1), some_pairs(1, 9))
    del long
    assert short.append(some_pairs(1, 2, seed=1)).pairs_AC2HE is short.pairs_AC2HE
