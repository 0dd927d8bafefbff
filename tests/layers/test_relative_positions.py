"""Buckets of distances against their definition in integers and against those of T5, and their layout as a mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from chainrule.errors import ConfigError
from chainrule.layers.attention.relative_positions import RelativePositions, relative_bucket

SHAPES = [(32, 128), (8, 20), (4, 3), (33, 100), (32, 17), (64, 1000)]


def defined_bucket(relative: int, buckets: int, distance: int, bidirectional: bool) -> int:
    """near + ⌊far · log(away/near) / log(distance/near)⌋ for `away` not near, computed without a logarithm."""
    first, away = 0, max(-relative, 0)
    if bidirectional:
        buckets //= 2
        first, away = (buckets if relative > 0 else 0), abs(relative)
    near = buckets // 2
    far = buckets - near
    if away < near:
        return first + away
    # The greatest k with (away/near)^far ≥ (distance/near)^k.
    k = max(k for k in range(far) if away**far * near**k >= distance**k * near**far)
    return first + near + k


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), SHAPES)
def test_buckets_equal_their_definition(buckets: int, distance: int, bidirectional: bool) -> None:
    relative = torch.arange(-1200, 1201)
    expected = [defined_bucket(int(r), buckets, distance, bidirectional) for r in relative]
    assert relative_bucket(relative, buckets, distance, bidirectional=bidirectional).tolist() == expected


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), SHAPES)
def test_buckets_equal_those_of_t5(buckets: int, distance: int, bidirectional: bool) -> None:
    relative = torch.arange(-5000, 5001)
    theirs = T5Attention._relative_position_bucket(relative, bidirectional, buckets, distance)
    assert torch.equal(relative_bucket(relative, buckets, distance, bidirectional=bidirectional), theirs)


def expected_mask(positions: RelativePositions, new: int, before: int, buckets: int, distance: int) -> Tensor:
    """The mask entry by entry."""
    rows = []
    for query in range(before, before + new):
        for key in range(before + new):
            if key > query and not positions.bidirectional:
                rows.append(torch.full((positions.table_UH.shape[1],), -math.inf))
            else:
                rows.append(positions.table_UH[defined_bucket(key - query, buckets, distance, positions.bidirectional)])
    return torch.stack(rows).view(1, new, before + new, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("new", "before"), [(1, 0), (1, 8), (9, 0), (4, 5), (2, 1)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_mask_holds_the_number_of_each_distance(bidirectional: bool, new: int, before: int) -> None:
    positions = RelativePositions(3, 8, 7, window=9, bidirectional=bidirectional)
    torch.nn.init.normal_(positions.table_UH)
    made, expected = positions(new, before), expected_mask(positions, new, before, 8, 7)
    assert torch.equal(made, expected)

    weight = torch.randn(made.shape)  # the gradient of a bucket sums over all positions with its distances
    gradients = [
        torch.autograd.grad((mask.masked_fill(mask == -math.inf, 0) * weight).sum(), positions.table_UH)[0]
        for mask in (made, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_a_distance_without_a_bucket_is_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        RelativePositions(2, 32, 16, window=9, bidirectional=True)
    assert str(caught.value) == (
        "model.distance is 16 and model.buckets is 32: half of the buckets hold one distance each, "
        "so the distance must be above 16; raise model.distance or lower model.buckets"
    )
