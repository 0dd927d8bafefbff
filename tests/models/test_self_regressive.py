"""The self-regressive model against a loop over its formulas, with every output layer, and its first loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_model
from chainrule.checkpoint.build import WeightsError, load_weights, weights_of
from chainrule.objectives.likelihood import Likelihood
from chainrule.registry import OUTPUTS
from chainrule.types import Batch

EOS, V = 0, 13


def some_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(3))


def inputs(tokens_BT: Tensor) -> Tensor:
    return torch.cat([torch.full_like(tokens_BT[:, :1], EOS), tokens_BT[:, :-1]], 1)


def lstm_step(layer: Any, x_BD: Tensor, h_BD: Tensor, c_BD: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM layer of ours, as in the papers."""
    gates = x_BD @ layer.weight_input_GD.T + layer.bias_G + h_BD @ layer.weight_hidden_GH.T
    g, i, f, o = gates.chunk(4, 1)
    c_BD = f.sigmoid() * c_BD + i.sigmoid() * g.tanh()
    return o.sigmoid() * c_BD.tanh(), c_BD


def by_hand(model: Any, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """log p of the tokens by the final and by the first prediction, BT each, step by step."""
    layer, table_VD = model.features, model.embedding.weight
    first, second = layer.first.layers[0], layer.second.layers[0]
    h1 = c1 = h2 = c2 = table_VD.new_zeros(2, 5)
    final, guessed = [], []
    for x_BD, target_B in zip(table_VD[inputs(tokens_BT)].unbind(1), tokens_BT.unbind(1), strict=True):
        before = h1
        h1, c1 = lstm_step(first, x_BD, h1, c1)
        query_BD = layer.query(torch.cat([before, h1], 1))
        chance_BV = model.output.log_probs(query_BD).exp()  # p_t, by the output layer itself
        expected_BD = torch.stack([sum(chance_BV[b, v] * table_VD[v] for v in range(V)) for b in range(2)])
        h2, c2 = lstm_step(second, expected_BD, h2, c2)
        decided_BD = layer.decide(h2)
        gate = layer.gate(torch.cat([query_BD, decided_BD], 1)).sigmoid()
        log_probs_BV = model.output.log_probs(gate * query_BD + (1 - gate) * decided_BD)
        final.append(log_probs_BV.gather(1, target_B[:, None]))
        guessed.append(chance_BV.gather(1, target_B[:, None]).log())
    return torch.cat(final, 1), torch.cat(guessed, 1)


def model_of(output: str, **options: Any) -> Any:
    return small_model("sr", output, hidden=5, **options)


CASES = [*((output, True) for output in OUTPUTS.names()), ("softmax", False)]


@pytest.mark.parametrize(("output", "tied"), CASES)
@torch.no_grad()
def test_the_second_lstm_reads_the_expected_embedding_under_the_output_layer(output: str, tied: bool) -> None:
    model, tokens_BT = model_of(output, tied=tied), some_tokens(2, 7)
    final_BT, _ = by_hand(model, tokens_BT)
    torch.testing.assert_close(model.log_probs(tokens_BT), final_BT, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("output", "tied"), CASES)
def test_the_loss_of_the_guess_is_added_in_training_only(output: str, tied: bool) -> None:
    model, tokens_BT = model_of(output, tied=tied, guess_loss=0.25), some_tokens(2, 7)
    weights_BT = torch.ones(2, 7)
    weights_BT[1, 4:] = 0
    batch = Batch(inputs(tokens_BT), tokens_BT, weights_BT)
    _, guess_BT = by_hand(model, tokens_BT)
    extra = model.train()(batch).extra
    torch.testing.assert_close(extra, -0.25 * (guess_BT * weights_BT).sum(), atol=1e-4, rtol=1e-4)
    assert model.eval()(batch).extra is None
    assert model_of(output, tied=tied, guess_loss=0).train()(batch).extra is None


def stage_gradients(model: Any, tokens_BT: Tensor, weight: float) -> list[Tensor]:
    """The gradients of the two stages by autograd over the loop, in which table and output layer are constants."""
    model.requires_grad_(False)
    model.features.requires_grad_(True)
    final_BT, guess_BT = by_hand(model, tokens_BT)
    loss = -final_BT.sum() - weight * guess_BT.sum()
    return list(torch.autograd.grad(loss, list(model.features.parameters())))


@pytest.mark.parametrize("output", ["softmax", "hierarchical", "adaptive"])
def test_the_gradient_of_both_stages_equals_autograd_over_the_loop(output: str) -> None:
    model, tokens_BT = model_of(output, guess_loss=0.7, guess_gradient=True).double(), some_tokens(2, 5)
    expected = stage_gradients(model, tokens_BT, 0.7)
    model.requires_grad_(True)
    model.train()
    loss = Likelihood(Likelihood.Config()).loss(model, Batch(inputs(tokens_BT), tokens_BT), model.start(2), 0)
    loss.total.backward()
    for parameter, gradient in zip(model.features.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-8, rtol=1e-6)


def test_without_its_gradient_the_expected_embedding_is_a_constant() -> None:
    tokens_BT = some_tokens(2, 5)
    gradients = {}
    for through in (True, False):
        model = model_of("softmax", guess_loss=0.5, guess_gradient=through).double().train()
        outputs = model(Batch(inputs(tokens_BT), tokens_BT))
        (outputs.hidden_BTD.sum() * 0 + outputs.extra).backward()  # the first loss alone
        gradients[through] = model.features.query.weight.grad
        model.zero_grad()
        # Through the gate, the query reaches the features of its own position only; through p_t all later ones too.
        embedded = model._embed(inputs(tokens_BT)).detach().requires_grad_(True)
        query_BTD, state = model.features.guess(embedded, model.features.start(2))
        query_BTD = query_BTD.detach().requires_grad_(True)
        expected_ND, _ = model.output.expect(query_BTD.flatten(0, 1), model.embedding.weight, None)
        expected_BTD = expected_ND.view(query_BTD.shape) if through else expected_ND.view(query_BTD.shape).detach()
        hidden_BTD, _ = model.features.merge(query_BTD, expected_BTD, state)
        hidden_BTD[:, -1].sum().backward()
        assert bool(query_BTD.grad[:, 0].any()) == through
    torch.testing.assert_close(gradients[True], gradients[False])


@pytest.mark.parametrize(("output", "tied"), CASES)
def test_a_trained_guess_is_a_prediction(output: str, tied: bool) -> None:
    """A guess without the bias, under another table than the output's, was worse than the uniform distribution."""
    tokens_BT = torch.tensor([1, 2, 3, 4, 5, 6]).repeat(2, 8)
    model = small_model("sr", output, hidden=8, tied=tied, guess_loss=0.5).train()
    optimizer, batch = torch.optim.Adam(model.parameters(), 0.03), Batch(inputs(tokens_BT), tokens_BT)
    for _ in range(25):
        optimizer.zero_grad()
        Likelihood(Likelihood.Config()).loss(model, batch, None, 0).total.backward()
        optimizer.step()
    with torch.no_grad():
        guess_nats = model(batch).extra.item() / 0.5 / tokens_BT.numel()
    assert guess_nats < 0.5 * math.log(V)


def test_weights_of_an_earlier_version_are_refused() -> None:
    model = small_model("sr")
    old = {name.replace("features.query", "features.guess"): tensor for name, tensor in weights_of(model).items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(model, old)
    assert str(caught.value) == (
        "this 'sr' run is of chainrule 0.2 or older, whose first prediction used the embedding table instead of the "
        "output layer, so its weights do not fit; train it again"
    )
