"""Compiled matrix products against double precision: every edge of a tile, several blocks of terms, all functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.engines.fused.products import BLOCK, PANEL, SLOPE, SQUARE
from chainrule.engines.fused.tiles import TILE_ROWS
from chainrule.layers.fused.parts import product

SHAPES = [
    (1, 1, 1),
    (TILE_ROWS, 16, PANEL),
    (2 * TILE_ROWS + 1, 33, 2 * PANEL + 5),
    (TILE_ROWS - 1, 20, PANEL // 2 - 1),
    (3 * TILE_ROWS, BLOCK + 7, PANEL + 16),
    (7, 2 * BLOCK, 19),
]


def matrix(rows: int, columns: int, *, turned: bool = False) -> Tensor:
    return torch.randn(columns, rows).t() if turned else torch.randn(rows, columns)


@pytest.mark.parametrize(("rows", "terms", "columns"), SHAPES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_matrices_as_they_lie(rows: int, terms: int, columns: int, turned: tuple[bool, bool]) -> None:
    torch.manual_seed(1)
    left, right = matrix(rows, terms, turned=turned[0]), matrix(terms, columns, turned=turned[1])
    base, squares = torch.randn(rows, columns), torch.rand(rows, columns)
    whole = left.double() @ right.double()
    bound = 1e-5 * terms**0.5
    assert torch.allclose(product(left, right).double(), whole, atol=bound)
    summed = base + whole
    assert torch.allclose(product(left, right, base_NX=base).double(), summed, atol=bound)
    positive = whole.clamp(min=0).square()
    assert torch.allclose(product(left, right, finish=SQUARE).double(), positive, atol=10 * bound, rtol=1e-4)
    slope = whole * 2 * squares.double().sqrt()
    assert torch.allclose(product(left, right, finish=SLOPE, squares_NX=squares).double(), slope, atol=2 * bound)


def test_numbers_of_a_row_do_not_depend_on_its_place() -> None:
    torch.manual_seed(2)
    left, right = torch.randn(4 * TILE_ROWS + 3, 2 * BLOCK), torch.randn(2 * BLOCK, PANEL + 9)
    whole = product(left, right)
    for row in (0, TILE_ROWS, 4 * TILE_ROWS, len(left) - 1):
        assert torch.equal(product(left[row : row + 1], right), whole[row : row + 1])
