"""The fast softmax against loops over single vectors, and how rows share its sources."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.layers.attention.fast_softmax import FastMemory, FastSoftmax
from chainrule.layers.attention.relative_positions import relative_bucket
from chainrule.types import select_rows

D, H, WINDOW, BUCKETS, DISTANCE = 6, 2, 20, 8, 12
E = D // H
LENGTHS = [5, 2, 4]
PLACES = torch.tensor([[0, 1, 3, 6, 7], [2, 4, 4, 4, 4], [0, 2, 5, 9, 9]])


def made() -> tuple[FastSoftmax, Tensor]:
    """A layer in which every weight matters, and the states of three sources ASD, in double precision."""
    torch.manual_seed(0)
    layer = FastSoftmax(D, H, window=WINDOW, buckets=BUCKETS, distance=DISTANCE).double()
    for parameter in layer.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return layer, torch.randn(3, 5, D, dtype=torch.float64)


def make_memory(layer: FastSoftmax, encoded_ASD: Tensor, places_AS: Tensor | None) -> FastMemory:
    """Three sources of unequal length."""
    real_AS = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    added_A11S = torch.zeros(3, 5, dtype=torch.float64).masked_fill(~real_AS, -torch.inf)[:, None, None]
    source = layer.read(encoded_ASD.flatten(0, 1), lambda flat_ND: flat_ND.view(3, 5, -1), 10)
    return FastMemory([source], places_AS, added_A11S)


def naive(layer: FastSoftmax, h_D: Tensor, t: int, states: list[Tensor], places: list[int]) -> tuple[Tensor, Tensor]:
    """The values that one decoder state at position t reads from a source without padding, and the weights HS."""
    found, weights = [], []
    for head in range(H):
        part, exps = slice(head * E, head * E + E), []
        c = layer.log_sharpness_H[head].exp()
        for x_D, s in zip(states, places, strict=True):
            score = (layer.project_query.weight[part] @ h_D) @ (layer.project_memory.weight[part] @ x_D)
            bucket = int(relative_bucket(torch.tensor(s - t), BUCKETS, DISTANCE, bidirectional=True))
            omega = score / math.sqrt(E) + layer.table_UH[bucket, head] + layer.bias_H[head]
            exps.append((c * omega.tanh()).exp())
        values = [layer.project_memory.weight[D + head * E : D + head * E + E] @ x_D for x_D in states]
        found.append(sum(exp * value for exp, value in zip(exps, values, strict=True)) / sum(exps))
        weights.append(torch.stack(exps) / sum(exps))
    return torch.cat(found), torch.stack(weights)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("rows", [1, 2])
def test_it_equals_the_formula_for_every_query(placed: bool, before: int, new: int, rows: int) -> None:
    layer, encoded_ASD = made()
    places_AS = PLACES if placed else torch.arange(5).expand(3, 5)
    memory: FastMemory = make_memory(layer, encoded_ASD, PLACES if placed else None)
    memory = memory.map_tensors(lambda tensor: tensor.repeat_interleave(rows, 0))
    assert memory.rows == rows
    hidden_RTD = torch.randn(3 * rows, new, D, dtype=torch.float64)
    found_RTD = layer(hidden_RTD.flatten(0, 1), memory, 0, before).view(hidden_RTD.shape)
    weights_AHWTS = layer.weights(hidden_RTD.flatten(0, 1), memory, 0, before).view(3, H, rows, new, 5)
    for row in range(3 * rows):
        length = LENGTHS[row // rows]
        states, places = list(encoded_ASD[row // rows, :length]), places_AS[row // rows, :length].tolist()
        for t in range(new):
            expected_D, expected_HS = naive(layer, hidden_RTD[row, t], before + t, states, places)
            torch.testing.assert_close(found_RTD[row, t], expected_D)
            weights_HS = weights_AHWTS[row // rows, :, row % rows, t]
            torch.testing.assert_close(weights_HS[:, :length], expected_HS)
            assert not weights_HS[:, length:].any()


@pytest.mark.parametrize("placed", [False, True])
def test_gradients_equal_finite_differences(placed: bool) -> None:
    layer, encoded_ASD = made()
    named = {name: p for name, p in layer.named_parameters() if name != "project_out.weight"}  # the decoder applies it
    weights = [parameter.detach().clone().requires_grad_() for parameter in named.values()]

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, encoded_ASD: Tensor, hidden_ND: Tensor) -> Tensor:
            memory = make_memory(self.layer, encoded_ASD, PLACES if placed else None)
            found: Tensor = self.layer(hidden_ND, memory, 0, 0)
            return found

    whole = Whole()

    def run(encoded_ASD: Tensor, hidden_ND: Tensor, *weights: Tensor) -> Tensor:
        given = {f"layer.{name}": weight for name, weight in zip(named, weights, strict=True)}
        found: Tensor = torch.func.functional_call(whole, given, (encoded_ASD, hidden_ND))
        return found

    hidden_ND = torch.randn(6, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (encoded_ASD.requires_grad_(), hidden_ND, *weights))


def test_initially_one_word_may_have_nearly_all_weight_within_the_bound() -> None:
    layer = FastSoftmax(D, H, window=WINDOW, buckets=BUCKETS, distance=DISTANCE)
    with torch.no_grad():
        layer.project_query.weight.fill_(100.0)
        layer.project_memory.weight.fill_(1.0)
    encoded_SD = torch.tensor([[1.0] * D, [-1.0] * D, [-1.0] * D])
    memory = FastMemory([layer.read(encoded_SD, lambda flat_ND: flat_ND[None], 3)], None, None)
    weights_S = layer.weights(torch.ones(1, D), memory, 0, 0)[0, 0, 0]
    torch.testing.assert_close(weights_S, torch.tensor([16.0, 0.0, 0.0]).softmax(0))


def test_rows_keep_their_sources() -> None:
    layer, encoded_ASD = made()
    memory = make_memory(layer, encoded_ASD, PLACES)
    widened = select_rows(memory, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert widened.rows == 2
    assert widened.layers[0].key_AHES is memory.layers[0].key_AHES
    fewer = select_rows(widened, torch.tensor([5, 4, 0, 1]))
    assert (len(fewer.places_AS), fewer.rows) == (2, 2)
    for name in ("key_AHES", "value_AHSE"):
        assert torch.equal(getattr(fewer.layers[0], name), getattr(memory.layers[0], name)[[2, 0]])
    assert torch.equal(fewer.places_AS, PLACES[[2, 0]])
    assert memory.added_A11S is not None
    assert torch.equal(fewer.added_A11S, memory.added_A11S[[2, 0]])


def test_a_distance_without_a_bucket_is_rejected() -> None:
    with pytest.raises(ConfigError) as error:
        FastSoftmax(D, H, window=WINDOW, buckets=8, distance=4)
    assert str(error.value) == (
        "model.distance is 4 and model.buckets is 8: half of the buckets hold one distance each, so the distance must "
        "be above 4; raise model.distance or lower model.buckets"
    )
