"""Slow attention against loops over single vectors, and its hand-written gradient against finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.layers.attention import slow as slow_attention
from chainrule.layers.attention.slow import Direction, PackedRows, SlowAttention, Visibility, slow_energies

D, H = 6, 2
E = D // H
LENGTHS = [4, 1, 5]
DIRECTIONS: list[Direction] = ["both", "left-to-right", "right-to-left"]
directions = pytest.mark.parametrize("direction", DIRECTIONS)


@pytest.fixture(params=["kernel", "chunks"])
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the kernel, or torch with two queries at a time."""
    if request.param == "chunks":
        monkeypatch.setattr(slow_attention, "_has_kernel", lambda pairs_NX: False)
        monkeypatch.setattr(slow_attention, "CHUNK", 2 * len(LENGTHS) * max(LENGTHS) * D)


both_implementations = pytest.mark.usefixtures("_implementation")


def rows_of(lengths: list[int]) -> PackedRows:
    return PackedRows.from_mask(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def made(lengths: list[int], direction: Direction) -> tuple[SlowAttention, Tensor, Visibility]:
    """A layer, the positions ND of rows of these lengths, and which see each other, in double precision."""
    torch.manual_seed(0)
    layer, inputs_ND = SlowAttention(D, H, dropout=0.0).double(), torch.randn(sum(lengths), D, dtype=torch.float64)
    return layer, inputs_ND, Visibility(rows_of(lengths), direction, inputs_ND)


def linear(layer: torch.nn.Linear, part: slice, x_D: Tensor) -> Tensor:
    found: Tensor = layer.weight[part] @ x_D + layer.bias[part]
    return found


def energy(layer: SlowAttention, head: int, x_D: Tensor, y_D: Tensor) -> Tensor:
    """‖ReLU(Wq x + Wk y)‖ / √E, number by number."""
    query_E = linear(layer.project_pairs, slice(head * E, head * E + E), x_D).tolist()
    key_E = linear(layer.project_pairs, slice(D + head * E, D + head * E + E), y_D).tolist()
    squares = [max(q + k, 0.0) ** 2 for q, k in zip(query_E, key_E, strict=True)]
    return torch.tensor(math.sqrt(sum(squares) / E), dtype=torch.float64)


def naive(layer: SlowAttention, row: list[Tensor], place: int, direction: Direction) -> Tensor:
    """The gated values of one position of a row, without the last projection."""
    heads, x_D = [], row[place]
    seen = {"both": row, "left-to-right": row[: place + 1], "right-to-left": row[place:]}[direction]
    for head in range(H):
        exps = [energy(layer, head, x_D, y_D).exp() for y_D in seen]
        values = [linear(layer.project_values, slice(head * E, head * E + E), y_D) for y_D in seen]
        heads.append(sum(exp * value for exp, value in zip(exps, values, strict=True)) / sum(exps))
    return torch.cat(heads) * linear(layer.project_values, slice(D, 2 * D), x_D).sigmoid()


@directions
@both_implementations
@pytest.mark.parametrize("lengths", [LENGTHS, [3, 3]], ids=["uneven", "even"])
def test_it_equals_the_formula_for_every_position(lengths: list[int], direction: Direction) -> None:
    layer, inputs_ND, visible = made(lengths, direction)
    found = list(layer(inputs_ND, visible))
    for row in inputs_ND.split(lengths):
        for place in range(len(row)):
            torch.testing.assert_close(found.pop(0), naive(layer, list(row), place, direction))
    assert not found


@directions
@both_implementations
def test_weights_of_visible_positions_sum_to_one_and_others_are_zero(direction: Direction) -> None:
    layer, inputs_ND, visible = made(LENGTHS, direction)
    weights_BHSS = layer.weights(inputs_ND, visible)
    for row, length in enumerate(LENGTHS):
        for i in range(length):
            seen = {"both": range(length), "left-to-right": range(i + 1), "right-to-left": range(i, length)}[direction]
            weights_HS = weights_BHSS[row, :, i]
            torch.testing.assert_close(weights_HS.sum(1), torch.ones(H, dtype=torch.float64))
            assert all(bool((weights_HS[:, j] > 0).all()) == (j in seen) for j in range(max(LENGTHS)))


@directions
@both_implementations
def test_gradients_equal_finite_differences(direction: Direction) -> None:
    layer, inputs_ND, visible = made([3, 1], direction)
    weights = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def run(inputs_ND: Tensor, *weights: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (inputs_ND, visible))
        return found

    assert torch.autograd.gradcheck(run, (inputs_ND.requires_grad_(), *weights))


@both_implementations
def test_the_gradient_is_zero_where_the_rectified_sum_is_zero() -> None:
    pairs_NX = -torch.rand(sum(LENGTHS), 2 * D, dtype=torch.float64) - 0.1
    pairs_NX[:4, :E] += 3.0  # one head of one row has positive sums
    pairs_NX.requires_grad_()
    visible = Visibility(rows_of(LENGTHS), "both", pairs_NX)

    def seen(pairs_NX: Tensor) -> Tensor:
        """The energies without those of the padding, which are undefined."""
        energies_BHSS, real_BS = slow_energies(pairs_NX, visible, H), visible.rows.real_BS
        assert real_BS is not None
        return energies_BHSS * (real_BS[:, None, :, None] & real_BS[:, None, None])

    energies_BHSS = seen(pairs_NX)
    assert bool((energies_BHSS[0, 0, :4, :4] > 0).all())
    assert not energies_BHSS[0, 1].any()
    assert not energies_BHSS[1:].any()
    assert torch.autograd.gradcheck(seen, (pairs_NX,))
    (grad_NX,) = torch.autograd.grad(seen(pairs_NX).sum(), pairs_NX)
    assert not grad_NX[4:].any()
    assert bool((grad_NX[:4, :E] > 0).all())


def test_the_number_of_threads_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs_ND, visible = made(LENGTHS, "both")
    inputs_ND.requires_grad_()

    def outcome() -> list[Tensor]:
        found_ND = layer(inputs_ND, visible)
        return [found_ND, *torch.autograd.grad(found_ND.square().sum(), inputs_ND)]

    alone = outcome()
    monkeypatch.setattr(slow_attention, "SUMS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert all(map(torch.equal, alone, outcome()))


def test_dropout_removes_weights_only_in_training() -> None:
    count = 4000
    layer, inputs_ND, _ = made([3], "both")
    visible = Visibility(rows_of([3] * count), "both", inputs_ND)
    layer.dropout = 0.5
    found_BSD = visible.rows.pad(layer(inputs_ND.repeat(count, 1), visible))
    expected_SD = layer.eval()(inputs_ND, Visibility(rows_of([3]), "both", inputs_ND))
    assert not torch.allclose(found_BSD[0], expected_SD, atol=0.01)
    torch.testing.assert_close(found_BSD.mean(0), expected_SD, atol=0.02, rtol=0.05)
    layer.dropout = 0.0
    torch.testing.assert_close(layer.train()(inputs_ND.repeat(count, 1), visible), expected_SD.repeat(count, 1))


def test_rows_are_padded_and_unpadded() -> None:
    rows, packed_N1 = rows_of(LENGTHS), torch.arange(1.0, 11.0)[:, None]
    padded_BS = rows.pad(packed_N1)[..., 0]
    assert [row[:length].tolist() for row, length in zip(padded_BS, LENGTHS, strict=True)] == [
        [1, 2, 3, 4],
        [5],
        [6, 7, 8, 9, 10],
    ]
    assert torch.equal(rows.unpad(padded_BS[..., None]), packed_N1)
    even: Any = rows_of([2, 2])
    assert even.real_BS is None
    assert even.pad(packed_N1[:4])[..., 0].tolist() == [[1, 2], [3, 4]]
