"""The autoregressive Transformer: against a loop over the formulas, and the size of its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from builders import small_model, small_translator, some_source, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.errors import ConfigError
from chainrule.layers.attention.linear import CHUNK, TINY, LinearState
from chainrule.models.at import LinearBlock, Seq2SeqAt
from chainrule.models.language_model import LanguageModel
from chainrule.registry import MODELS
from chainrule.types import Batch

EOS = 0
decays = pytest.mark.parametrize("decay", [True, False])


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled("gradient" in request.node.name):
        yield


def naive_attention(block: LinearBlock, inputs_TD: Tensor) -> Tensor:
    """Every pair of positions separately -> TD."""
    T, D = inputs_TD.shape
    heads, E = block.heads, D // block.heads
    query_TD, key_TD, value_TD = (inputs_TD @ block.project_in.weight.T).chunk(3, 1)
    gammas = [1.0] * heads if block.decay is None else block.decay.logit_H.sigmoid().tolist()
    mixed_TD = torch.zeros_like(inputs_TD)
    for head, gamma in enumerate(gammas):
        at = slice(head * E, head * E + E)
        features = [F.elu(part[:, at]) + 1 for part in (query_TD, key_TD)]
        for t in range(T):
            weight_L = torch.stack([gamma ** (t - i) * (features[0][t] @ features[1][i]) for i in range(t + 1)])
            mixed_TD[t, at] = weight_L @ value_TD[: t + 1, at] / (weight_L.sum() + TINY)
    return mixed_TD @ block.project_out.weight.T


def norm(layer: Any, inputs: Tensor) -> Tensor:
    centred = inputs - inputs.mean(-1, keepdim=True)
    scaled: Tensor = centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight
    return scaled


@decays
def test_the_language_model_equals_its_formulas(decay: bool) -> None:
    model = small_model("at", layers=2, decay=decay).double()
    tokens_T = some_tokens(1, 9)[0]
    stream_TD = model.embedding.weight[torch.cat([torch.tensor([EOS]), tokens_T[:-1]])]
    for block in model.features.blocks:
        stream_TD = stream_TD + naive_attention(block, norm(block.norm_attention, stream_TD))
        inner = (norm(block.norm_feedforward, stream_TD) @ block.widen.weight.T).clamp(min=0).square()
        stream_TD = stream_TD + inner @ block.narrow.weight.T
    scores_TV = norm(model.features.norm, stream_TD) @ model.embedding.weight.T + model.output.bias_V
    expected_T = scores_TV.log_softmax(1)[torch.arange(9), tokens_T]
    torch.testing.assert_close(model.log_probs(tokens_T[None])[0], expected_T)


@decays
def test_a_long_text_is_scored_as_it_is_stepped(decay: bool) -> None:
    model: LanguageModel = small_model("at", layers=2, decay=decay).double()
    tokens_BT = some_tokens(2, 2 * CHUNK + 9)
    whole_BT = model.log_probs(tokens_BT)
    state, parts = model.start(2), []
    for piece_BT in tokens_BT.split([CHUNK + 1, 1, 7, CHUNK], 1):
        scored_BT, state = model.score(piece_BT, state)
        parts.append(scored_BT)
    torch.testing.assert_close(torch.cat(parts, 1), whole_BT)
    state, token_B = model.start(2), torch.full((2,), EOS)
    for t, next_B in enumerate(tokens_BT.unbind(1)):
        row_BV, state = model.step(state, token_B)
        torch.testing.assert_close(row_BV.gather(1, next_B[:, None])[:, 0], whole_BT[:, t])
        token_B = next_B


def numbers(state: Any) -> int:
    return sum(tensor.numel() for layer in state.features for tensor in layer)


def test_the_state_of_a_long_prefix_is_as_large_as_that_of_a_short_one() -> None:
    model: LanguageModel = small_model("at")
    heads, width = 2, 4
    with kernels_suspended():
        _, short = model.prefill(model.start(1), some_tokens(1, 2))
        _, long = model.prefill(model.start(1), some_tokens(1, 700))
        assert numbers(model.start(1)) == numbers(short) == numbers(long) == heads * (width * width + width)
    _, short = model.prefill(model.start(1), some_tokens(1, 2))
    _, long = model.prefill(model.start(1), some_tokens(1, 700))
    assert short.features.past.sums_TX.shape == long.features.past.sums_TX.shape
    assert model.window is None


def test_decay_makes_the_order_of_earlier_words_matter() -> None:
    one_BT, other_BT = torch.tensor([[3, 5, 7, 2]]), torch.tensor([[5, 3, 7, 2]])

    def gap(**options: Any) -> float:
        model = small_model("at", **options).double()
        rows = [model.prefill(model.start(1), tokens_BT)[0] for tokens_BT in (one_BT, other_BT)]
        return float((rows[0] - rows[1]).abs().max())

    # With one layer and no decay the past is a sum, in which words have no order.
    assert gap(decay=False) < 1e-9
    assert gap(decay=True) > 1e-3


def test_every_head_of_every_layer_learns_its_decay_by_gradient() -> None:
    model = small_model("at", layers=2)
    tokens_BT = some_tokens(2, 12)
    hidden_BTD = model(Batch(tokens_BT[:, :-1], tokens_BT[:, 1:]), model.start(2)).hidden_BTD
    (-model.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT[:, 1:].flatten())).sum().backward()
    for block in model.features.blocks:
        assert bool((block.decay.logit_H.grad.abs() > 1e-6).all())


@pytest.mark.parametrize("name", ["at", "seq2seq-at"])
def test_heads_that_do_not_divide_the_width_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        (small_model if name == "at" else small_translator)(name, embedding=8, heads=3)
    assert str(refused.value) == (
        "model.embedding is 8 and model.heads is 3: the heads must divide the width evenly; try model.heads=2"
    )


@decays
def test_the_decoder_alone_differs_from_the_transformer(decay: bool) -> None:
    model, source = small_translator("seq2seq-at", decay=decay), some_source([5, 2])
    assert isinstance(model, Seq2SeqAt)
    assert all(isinstance(block, LinearBlock) for block in model.decoder.blocks)
    usual = small_translator("seq2seq-transformer")
    usual.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if "decay" not in name})
    assert torch.equal(model.encode(source), usual.encode(source))
    tokens_BT = some_tokens(2, 6)
    assert not torch.allclose(model.log_probs(tokens_BT, source), usual.log_probs(tokens_BT, source))
    # Before the first token there is no past: attention to one position returns its value.
    torch.testing.assert_close(model.log_probs(tokens_BT[:, :1], source), usual.log_probs(tokens_BT[:, :1], source))


@decays
def test_the_decoder_attends_to_itself_by_the_formula(decay: bool) -> None:
    model = small_translator("seq2seq-at", decay=decay).double()
    block = model.decoder.blocks[0]
    inputs_TD = torch.randn(7, 8, dtype=torch.float64)
    found_ND, _ = block._attend(inputs_TD, 1, None, None, True)
    torch.testing.assert_close(found_ND, naive_attention(block, inputs_TD))


def test_the_state_of_a_translation_has_constant_size() -> None:
    model, source = small_translator("seq2seq-at"), some_source([5, 2])
    with kernels_suspended():
        state = model.start(source)
        for turn in range(9):
            _, state = model.step(state, some_tokens(2, 1, seed=turn)[:, 0])
    assert state.length == 9
    (remembered,) = state.caches
    assert isinstance(remembered, LinearState)
    assert [tuple(tensor.shape) for tensor in remembered] == [(2, 2, 4, 4), (2, 2, 4)]


def test_more_than_the_context_is_refused() -> None:
    model, source = small_translator("seq2seq-at", context=6), some_source([3])
    _, state = model.prefill(model.start(source), some_tokens(1, 6))
    with pytest.raises(ConfigError) as refused:
        model.step(state, torch.tensor([1]))
    assert str(refused.value) == (
        "got 7 tokens, but the model reads at most model.context = 6; shorten the line or train with a larger context"
    )


def test_language_model_and_translator_are_counterparts() -> None:
    assert (MODELS.get("at").task, MODELS.get("at").counterpart) == ("lm", "seq2seq-at")
    assert (MODELS.get("seq2seq-at").task, MODELS.get("seq2seq-at").counterpart) == ("translation", "at")
