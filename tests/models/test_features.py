"""The other feature layers against loops over their formulas, and recurrent models against torch.nn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders import small_model
from chainrule.objectives.likelihood import Likelihood
from chainrule.types import Batch, detach_state

EOS, V = 0, 13
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}


def some_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(3))


def inputs(tokens_BT: Tensor) -> Tensor:
    """The inputs with which the tokens are predicted."""
    return torch.cat([torch.full_like(tokens_BT[:, :1], EOS), tokens_BT[:, :-1]], 1)


def scored(model: Any, hidden_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
    """log p of the tokens by a plain softmax over features, BT."""
    if model.bridge is not None:
        hidden_BTD = model.bridge(hidden_BTD)
    scores_BTV = hidden_BTD @ model.output.weight_VD.T + model.output.bias_V
    return scores_BTV.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]


@torch.no_grad()
def assert_scored(model: Any, hidden_BTD: Tensor, tokens_BT: Tensor) -> None:
    torch.testing.assert_close(model.log_probs(tokens_BT), scored(model, hidden_BTD, tokens_BT), **CLOSE)


@torch.no_grad()
def test_the_uniform_average_is_the_mean_of_the_prefix() -> None:
    model, tokens_BT = small_model("average", context=20), some_tokens(2, 12)
    embedded_BTD = model.embedding.weight[inputs(tokens_BT)]
    hidden = [embedded_BTD[:, : t + 1].sum(1) / (t + 1) for t in range(12)]
    assert_scored(model, torch.stack(hidden, 1), tokens_BT)


@torch.no_grad()
def test_the_attended_average_is_a_softmax_weighted_sum_of_the_prefix() -> None:
    model, tokens_BT = small_model("average", weights="attention", context=20), some_tokens(2, 12)
    embedded_BTD, layer = model.embedding.weight[inputs(tokens_BT)], model.features
    hidden = torch.zeros_like(embedded_BTD)
    for b in range(2):
        for t in range(12):
            query_D = layer.query.weight @ embedded_BTD[b, t] + layer.query.bias
            scores = torch.stack([query_D @ (layer.key.weight @ embedded_BTD[b, s]) for s in range(t + 1)])
            share = (scores / 8**0.5).softmax(0)
            hidden[b, t] = sum(share[s] * embedded_BTD[b, s] for s in range(t + 1))
    assert_scored(model, hidden, tokens_BT)


@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 3}, {"skip": False, "layers": 2}, {"activation": "relu"}, {"order": 2}, {"hidden": 5}],
    ids=str,
)
@torch.no_grad()
def test_feedforward_sees_the_last_words_side_by_side(options: dict[str, Any]) -> None:
    model, tokens_BT = small_model("feedforward", **options), some_tokens(2, 9)
    layer, seen = model.features, model.config.order - 1
    act = torch.relu if options.get("activation") == "relu" else torch.tanh
    embedded_BTD = model.embedding.weight[inputs(tokens_BT)]
    hidden = []
    for t in range(9):
        words = [embedded_BTD[:, s] if s >= 0 else torch.zeros(2, 8) for s in range(t - seen + 1, t + 1)]
        joined = torch.cat(words, 1)
        h = act(joined @ layer.first.weight.T + layer.first.bias)
        for rest in layer.rest:
            further = act(h @ rest.weight.T + rest.bias)
            h = h + further if model.config.skip else further
        hidden.append(h + joined @ layer.skip.weight.T if model.config.skip else h)
    assert_scored(model, torch.stack(hidden, 1), tokens_BT)


def convolved(layer: Any, stream_BTD: Tensor) -> Tensor:
    """A causal, dilated, gated convolution with a residual, one position and one tap after another."""
    normed_BTD, kernel = layer.norm(stream_BTD), layer.conv.weight.shape[2]
    out = []
    for t in range(stream_BTD.shape[1]):
        total = layer.conv.bias.expand(len(stream_BTD), -1)
        for tap in range(kernel):
            place = t - (kernel - 1 - tap) * layer.dilation
            if place >= 0:
                total = total + normed_BTD[:, place] @ layer.conv.weight[:, :, tap].T
        value, gate = total.chunk(2, 1)
        out.append(stream_BTD[:, t] + value * gate.sigmoid())
    return torch.stack(out, 1)


@pytest.mark.parametrize("options", [{}, {"kernel": 3, "convolutions": 3, "heads": 4}], ids=str)
@torch.no_grad()
def test_conv_attention_is_convolutions_then_attention_then_a_connected_layer(options: dict[str, Any]) -> None:
    model, tokens_BT = small_model("conv-attention", context=16, **options), some_tokens(2, 11)
    layer, heads = model.features, model.config.heads
    stream_BTD = model.embedding.weight[inputs(tokens_BT)]
    for conv in layer.convolutions:
        stream_BTD = convolved(conv, stream_BTD)
    attention = nn.MultiheadAttention(8, heads, batch_first=True)
    attention.in_proj_weight.copy_(layer.attention.project_in.weight)
    attention.in_proj_bias.copy_(layer.attention.project_in.bias)
    attention.out_proj.weight.copy_(layer.attention.project_out.weight)
    attention.out_proj.bias.copy_(layer.attention.project_out.bias)
    normed, hidden_after = layer.norm(stream_BTD), torch.ones(11, 11, dtype=torch.bool).triu(1)
    stream_BTD = stream_BTD + attention(normed, normed, normed, attn_mask=hidden_after, need_weights=False)[0]
    norm, widen, _, narrow = layer.connected
    inner = widen(norm(stream_BTD))
    stream_BTD = stream_BTD + narrow(inner * 0.5 * (1 + torch.erf(inner / 2**0.5)))
    assert_scored(model, stream_BTD, tokens_BT)


def torch_twin(model: Any, kind: type[nn.RNNBase]) -> nn.RNNBase:
    """torch's own layers with the weights of ours; gates are in another order there."""
    c = model.config
    twin = kind(c.embedding, c.hidden, c.layers, batch_first=True)
    order = [1, 2, 0, 3] if kind is nn.LSTM else [0]  # ours: candidate, input, forget, output
    with torch.no_grad():
        for number, layer in enumerate(model.features.recurrence.layers):

            def reordered(weight: Tensor) -> Tensor:
                parts = weight.chunk(len(order))
                return torch.cat([parts[place] for place in order])

            getattr(twin, f"weight_ih_l{number}").copy_(reordered(layer.weight_input_GD))
            getattr(twin, f"weight_hh_l{number}").copy_(reordered(layer.weight_hidden_GH))
            getattr(twin, f"bias_ih_l{number}").copy_(reordered(layer.bias_G))
            getattr(twin, f"bias_hh_l{number}").zero_()
    return twin


@pytest.mark.parametrize(("name", "kind"), [("lstm", nn.LSTM), ("rnn", nn.RNN)])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_recurrent_models_are_torchs_layers_between_embedding_and_softmax(
    name: str, kind: type[nn.RNNBase], tied: bool
) -> None:
    model, tokens_BT = small_model(name, layers=2, hidden=6, tied=tied), some_tokens(3, 10)
    hidden_BTD, _ = torch_twin(model, kind)(model.embedding(inputs(tokens_BT)))
    assert_scored(model, hidden_BTD, tokens_BT)
    assert (model.output.weight_VD is model.embedding.weight) == tied


# Back-propagation through time


@pytest.mark.parametrize("name", ["rnn", "lstm", "lstm-peephole", "lstm-coupled", "gru"])
def test_the_gradient_through_time_is_a_finite_difference(name: str) -> None:
    model = small_model(name, embedding=4, hidden=4).double().train()
    tokens = some_tokens(2, 7)
    batch = Batch(tokens[:, :-1], tokens[:, 1:])

    def loss() -> Tensor:
        return Likelihood(Likelihood.Config()).loss(model, batch, model.start(2), 0).total

    model.zero_grad()
    loss().backward()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope, step = float((parameter.grad * direction).sum()), 1e-5
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            above = float(loss())
            parameter.sub_(direction, alpha=2 * step)
            below = float(loss())
            parameter.add_(direction, alpha=step)
        assert slope == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-6)


def test_truncation_cuts_the_gradient_but_not_the_state() -> None:
    model, tokens = small_model("gru", tied=False), some_tokens(1, 10)
    whole = Batch(tokens[:, :-1], tokens[:, 1:])
    first, second = (Batch(*(part[:, piece] for part in whole[:2])) for piece in (slice(0, 5), slice(5, 9)))
    objective = Likelihood(Likelihood.Config())
    one = objective.loss(model, whole, model.start(1), 0)
    half = objective.loss(model, first, model.start(1), 0)
    other = objective.loss(model, second, detach_state(half.state), 0)
    torch.testing.assert_close(half.total + other.total, one.total)
    other.total.backward()
    used = set(second.inputs_BT.flatten().tolist())
    unread = [token for token in range(V) if token not in used]
    assert set(first.inputs_BT.flatten().tolist()) & set(unread)
    assert not model.embedding.weight.grad[unread].any()
    assert model.embedding.weight.grad[sorted(used)].any(1).all()
