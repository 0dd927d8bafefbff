"""The compiled allocation, and the layers that make keys and values, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chainrule.base.kernels import kernels_suspended
from chainrule.engines.decode import allocation as compiled_allocation
from chainrule.engines.decode.source_layers import CompiledLayers
from chainrule.engines.decode.weights import Linear
from chainrule.layers.nonautoregressive.allocation import REACH, Allocation

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
COUNTS = [6, 1, 9]


def sources(encoded: int, places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Encoded sources, the bias of their padding and their numbers of tokens."""
    count_A = torch.tensor(COUNTS) + places - max(COUNTS)
    bias_A1S = torch.zeros(len(COUNTS), 1, places)
    for row, count in enumerate(count_A.tolist()):
        bias_A1S[row, :, count:] = -torch.inf
    return torch.randn(len(COUNTS), places, encoded), bias_A1S, count_A


@pytest.mark.parametrize("width", [12, 32, 70])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("places", [9, 9 + 2 * REACH])
def test_features_are_those_of_torch(width: int, threshold: float, places: int) -> None:
    torch.manual_seed(0)
    allocation = Allocation(20, width).eval()
    with torch.no_grad():
        allocation.distance_bias.normal_()
        given = sources(20, places)
        source = allocation.read(*given)
        with kernels_suspended():
            plain = allocation.read(*given)
        assert source.engine is not None
        assert plain.engine is None
        for first, count in ((0, 7), (3, 11), (50, compiled_allocation.FIRST_POSITIONS)):
            found_ATD, expected_ATD = (allocation(one, first, count, threshold) for one in (source, plain))
            assert found_ATD.shape == (len(COUNTS), count, width)
            torch.testing.assert_close(found_ATD, expected_ATD, **CLOSE)


def test_a_source_has_the_same_features_alone_and_in_parts() -> None:
    torch.manual_seed(1)
    allocation = Allocation(20, 24).eval()
    with torch.no_grad():
        encoded_ASE, bias_A1S, count_A = sources(20, 9)
        together_ATD = allocation(allocation.read(encoded_ASE, bias_A1S, count_A), 0, 12, 0.01)
        for row, count in enumerate(COUNTS):
            own = allocation.read(encoded_ASE[row : row + 1, :count], None, count_A[row : row + 1])
            parts = [allocation(own, first, 4, 0.01)[0] for first in (0, 4, 8)]
            assert torch.equal(torch.cat(parts), together_ATD[row])


def test_layers_of_the_same_rows() -> None:
    draw = np.random.default_rng(0)
    layers = [
        Linear(draw.normal(size=(outputs, 21)).astype(np.float32), bias_X)
        for outputs, bias_X in ((16, None), (37, draw.normal(size=37).astype(np.float32)))
    ]
    inputs = draw.normal(size=(3, 5, 21)).astype(np.float32)
    for layer, found in zip(layers, CompiledLayers(layers).apply(inputs), strict=True):
        expected = inputs @ layer.weight_XD.T + (0 if layer.bias_X is None else layer.bias_X)
        np.testing.assert_allclose(found[..., : len(layer.weight_XD)], expected, rtol=1e-4, atol=1e-5)
        assert found.shape[-1] % 16 == 0
        assert not found[..., len(layer.weight_XD) :].any()
