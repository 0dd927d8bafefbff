"""An encoded source that several rows share, against a copy per row and loops over single vectors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chainrule.layers.attention.source_memory import SourceMemory, attend_source, source_mask, source_weights
from chainrule.types import select_rows

H, S, E = 2, 5, 3
MASK = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])


def random_memory(sources: int, layers: int = 2, *, padded: bool = True) -> SourceMemory:
    """Random keys and values of some sources, in double precision."""
    generator = torch.Generator().manual_seed(sources)
    pairs = torch.randn(layers, 2, sources, H, S, E, generator=generator, dtype=torch.float64)
    mask_AS = MASK[torch.arange(sources) % 3]
    return SourceMemory([(pair[0], pair[1]) for pair in pairs], source_mask(mask_AS) if padded else None)


def by_row(memory: SourceMemory) -> list[Tensor]:
    """Keys, values and mask of each row, nothing shared."""
    tensors = [*itertools.chain.from_iterable(memory.pairs), memory.mask_A11S]
    return [tensor.repeat_interleave(memory.rows, 0) for tensor in tensors if tensor is not None]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_selection_of_rows_equals_that_of_rows_with_a_copy_each(data: st.DataObject) -> None:
    memory = random_memory(data.draw(st.integers(1, 4)), padded=data.draw(st.booleans()))
    expected = by_row(memory)
    for _ in range(data.draw(st.integers(1, 4))):
        rows = len(expected[0])
        each = data.draw(st.integers(1, 3))
        chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6))
        rows_K = torch.tensor(chosen).repeat_interleave(each)
        memory, expected = select_rows(memory, rows_K), [tensor[rows_K] for tensor in expected]
        assert memory.count * memory.rows == len(rows_K)
        assert all(map(torch.equal, by_row(memory), expected))


@pytest.mark.parametrize(
    ("rows", "sources", "each"),
    [
        ([0, 1, 2], [0, 1, 2], 1),
        ([0, 0, 1, 1, 2, 2], [0, 1, 2], 2),
        ([2, 2, 0, 0], [2, 0], 2),
        ([1, 1, 1], [1], 3),
        ([0, 0, 1, 2], [0, 0, 1, 2], 1),  # unequal numbers: a copy per row
        ([0, 1, 0, 1], [0, 1, 0, 1], 1),
    ],
)
def test_a_source_is_stored_once_for_adjacent_rows(rows: list[int], sources: list[int], each: int) -> None:
    memory = random_memory(3)
    chosen = select_rows(memory, torch.tensor(rows))
    assert (chosen.count, chosen.rows) == (len(sources), each)
    assert torch.equal(chosen.pairs[1][0], memory.pairs[1][0][sources])


def test_nothing_is_copied_while_the_sources_stay_in_place() -> None:
    memory = random_memory(3)
    wide = select_rows(memory, torch.arange(3).repeat_interleave(4))
    turned = select_rows(wide, torch.tensor([3, 3, 0, 1, 5, 6, 4, 4, 11, 10, 9, 8]))
    assert turned.rows == wide.rows == 4
    assert turned.pairs is wide.pairs is memory.pairs
    assert select_rows(turned, torch.tensor([2, 7, 8])).pairs is memory.pairs


def loops(query_E: Tensor, keys_SE: Tensor, values_SE: Tensor, seen: list[int], scale: float) -> tuple[Tensor, Tensor]:
    """The attention of one query to the visible positions -> the mixed values, E, and the weights, S."""
    shares = {s: math.exp(scale * float(query_E @ keys_SE[s])) for s in seen}
    weights_S = torch.tensor([shares.get(s, 0.0) / sum(shares.values()) for s in range(S)], dtype=torch.float64)
    return sum((weights_S[s] * values_SE[s] for s in seen), torch.zeros(E, dtype=torch.float64)), weights_S


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize(("each", "time", "padded"), [(1, 1, True), (1, 4, True), (3, 1, True), (2, 3, False)])
def test_attention_to_the_source_equals_the_formula(each: int, time: int, padded: bool, scale: float | None) -> None:
    memory = select_rows(random_memory(3, padded=padded), torch.arange(3).repeat_interleave(each))
    generator = torch.Generator().manual_seed(0)
    query_RTHE = torch.randn(3 * each, time, H, E, generator=generator, dtype=torch.float64)
    query_ND = query_RTHE.view(-1, H * E)
    mixed_RTHE = attend_source(query_ND, memory, 1, scale=scale).view(query_RTHE.shape)
    weights_ATS = source_weights(query_ND, memory, 1, scale) if each == 1 else None
    keys_AHSE, values_AHSE = memory.pairs[1]
    for row, t in itertools.product(range(3 * each), range(time)):
        source = row // each
        seen = [s for s in range(S) if MASK[source, s] or not padded]
        found = [
            loops(query_RTHE[row, t, h], keys_AHSE[source, h], values_AHSE[source, h], seen, scale or E**-0.5)
            for h in range(H)
        ]
        torch.testing.assert_close(mixed_RTHE[row, t], torch.stack([mixed_E for mixed_E, _ in found]))
        if weights_ATS is not None:
            torch.testing.assert_close(weights_ATS[row, t], sum(weights_S for _, weights_S in found) / H)


def test_a_source_without_padding_has_no_mask() -> None:
    assert source_mask(torch.ones(2, 3, dtype=torch.bool)) is None
    mask_B11S = source_mask(MASK)
    assert mask_B11S is not None
    assert torch.equal(mask_B11S[:, 0, 0], MASK)
