"""The stacks of ELMo against the LSTM of torch, and the mix of its layers against its formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chainrule.layers.encoders.elmo import Direction, ElmoEncoder, ElmoShape, LayerMix
from chainrule.layers.recurrent.stack import Recurrence, RecurrentLayer


def encoder_of(**options: object) -> ElmoEncoder:
    torch.manual_seed(3)
    shape = ElmoShape.model_validate({"vocab_size": 11, "embedding": 4, "hidden": 4, "layers": 2, **options})
    return ElmoEncoder(shape).double().eval()


def by_torch(direction: Direction, embedded_BSE: Tensor) -> list[Tensor]:
    """Every layer by torch.nn.LSTM with the same weights."""
    below, found = embedded_BSE, []
    for depth, stack in enumerate(direction.stack):
        assert isinstance(stack, Recurrence)
        layer = stack.layers[0]
        assert isinstance(layer, RecurrentLayer)
        lstm = nn.LSTM(below.shape[2], stack.hidden_size, batch_first=True).double()
        weights = {"weight_ih_l0": layer.weight_input_GD, "weight_hh_l0": layer.weight_hidden_GH}
        weights["bias_ih_l0"] = layer.bias_G
        with torch.no_grad():
            for name, weight in weights.items():
                g, i, f, o = weight.chunk(4)
                getattr(lstm, name).copy_(torch.cat([i, f, g, o]))
            lstm.bias_hh_l0.zero_()
        states, _ = lstm(below)
        if direction.narrow is not None:
            states = direction.narrow[depth](states)
        below = states if depth == 0 else below + states
        found.append(below)
    return found


@pytest.mark.parametrize("hidden", [4, 7])
@pytest.mark.parametrize("layers", [1, 3])
def test_both_directions_against_torch(hidden: int, layers: int) -> None:
    encoder = encoder_of(hidden=hidden, layers=layers)
    tokens_BS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    embedded_BSE = encoder.word_table(tokens_BS)
    right = by_torch(encoder.rightward, embedded_BSE)
    left = [layer.flip(1) for layer in by_torch(encoder.leftward, embedded_BSE.flip(1))]
    expected = [torch.cat([embedded_BSE, embedded_BSE], 2)]
    expected += [torch.cat(pair, 2) for pair in zip(right, left, strict=True)]
    found = encoder.layers(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    assert len(found) == layers + 1
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_one_direction_continues_from_its_state() -> None:
    direction = encoder_of().rightward
    embedded_BSE = torch.randn(2, 7, 4, dtype=torch.float64)
    whole, last = direction(embedded_BSE)
    first, state = direction(embedded_BSE[:, :3])
    second, state = direction(embedded_BSE[:, 3:], state)
    for layer, (one, other) in zip(whole, zip(first, second, strict=True), strict=True):
        torch.testing.assert_close(torch.cat([one, other], 1), layer)
    torch.testing.assert_close(state, last)


def test_the_encoder_gives_the_mean_of_its_layers() -> None:
    encoder, tokens_BS = encoder_of(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    mask_BS = torch.tensor([[True] * 3, [True, True, False]])
    layers = encoder.layers(tokens_BS, mask_BS)
    torch.testing.assert_close(encoder(tokens_BS, mask_BS), (layers[0] + layers[1] + layers[2]) / 3)
    fresh = LayerMix(3).double()
    torch.testing.assert_close(fresh(layers), encoder(tokens_BS, mask_BS))


# The mix


def some_mix() -> tuple[LayerMix, list[Tensor]]:
    torch.manual_seed(5)
    mix = LayerMix(3).double()
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.2, 0.8]))
        mix.scale.fill_(1.7)
    return mix, [torch.randn(2, 4, 6, dtype=torch.float64) for _ in range(3)]


def test_the_mix_equals_its_formula() -> None:
    mix, layers = some_mix()
    shares = mix.weights.detach().exp().tolist()
    for b in range(2):
        for s in range(4):
            total = torch.zeros(6, dtype=torch.float64)
            for share, layer in zip(shares, layers, strict=True):
                total += share / sum(shares) * layer[b, s]
            torch.testing.assert_close(mix(layers)[b, s], 1.7 * total)


def test_the_gradient_of_the_mix_equals_finite_differences() -> None:
    mix, layers = some_mix()
    target = torch.randn(2, 4, 6, dtype=torch.float64)

    def loss() -> Tensor:
        return (mix(layers) - target).square().sum()

    loss().backward()
    step = 1e-6
    for parameter in (mix.weights, mix.scale):
        assert parameter.grad is not None
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for place in range(len(flat)):
            kept = float(flat[place])
            around = []
            for moved in (kept + step, kept - step):
                flat[place] = moved
                around.append(float(loss().detach()))
            flat[place] = kept
            assert (around[0] - around[1]) / (2 * step) == pytest.approx(float(gradient[place]), rel=1e-6)
