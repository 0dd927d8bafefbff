"""The compiled Transformer against torch, and what its states promise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states
from chainrule.engines.decode.stack import StackState
from chainrule.types import Source

FORMS: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "bias": True, "activation": "gelu-tanh"},
    {"positions": "sinusoidal", "norm": "post", "activation": "gelu", "bias": True},
    {"positions": "none", "activation": "relu", "embedding": 40, "heads": 4, "feedforward": 50},
    {"embedding": 64, "heads": 2, "layers": 2, "context": 40},
    {"embedding": 192, "heads": 2, "layers": 2, "context": 24},
]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
V, T = 13, 19


def transformer(output: str = "softmax", *, noise: float = 0.7, **options: Any) -> Any:
    model = small_model("transformer", output, **options)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            draw = torch.Generator().manual_seed(number)
            parameter += noise * parameter.shape[-1] ** -0.5 * torch.randn(parameter.shape, generator=draw)
    return model.eval()


def by_torch(model: Any, tokens_BT: Tensor) -> Tensor:
    with kernels_suspended(), evaluating(model):
        return model.extend(model.start(len(tokens_BT)), tokens_BT)[0]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("output", ["softmax", "adaptive"])
def test_the_kernel_is_torch(form: dict[str, Any], output: str) -> None:
    model, tokens_BT = transformer(output, **form), some_tokens(3, T)
    exact_BTV, by_torch_BTV = (by_torch(one, tokens_BT) for one in (copy.deepcopy(model).double(), model))
    with evaluating(model):
        state = model.start(3)
        assert isinstance(state.features, StackState)
        found_BTV, state = model.extend(state, tokens_BT)
        scores_BT = model.log_probs(tokens_BT)
    # Both round in single precision; neither is closer to the exact numbers.
    bound = 5 * float((by_torch_BTV - exact_BTV).abs().max()) + 2e-5
    torch.testing.assert_close(found_BTV.double(), exact_BTV, rtol=0, atol=bound)
    with kernels_suspended(), evaluating(model):
        torch.testing.assert_close(scores_BT, model.log_probs(tokens_BT), rtol=0, atol=2 * bound)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_how_tokens_are_divided_into_calls_changes_nothing(precision: Any) -> None:
    model, tokens_BT = transformer(embedding=40, heads=4, layers=2, context=8), some_tokens(3, T)
    model.precision = precision
    with evaluating(model):
        at_once_BTV, _ = model.extend(model.start(3), tokens_BT)
        state, rows = model.start(3), []
        for token_B in tokens_BT.unbind(1):
            log_probs_BV, state = model.step(state, token_B)
            rows.append(log_probs_BV)
        alone_TV, _ = model.extend(model.start(1), tokens_BT[1:2])
        last_BV, _ = model.prefill(model.start(3), tokens_BT)
    assert torch.equal(torch.stack(rows, 1), at_once_BTV)
    assert torch.equal(alone_TV[0], at_once_BTV[1])
    assert torch.equal(last_BV, at_once_BTV[:, -1])


def test_a_state_stays_as_it_is() -> None:
    model, tokens_BT = transformer(context=12), some_tokens(2, 9)
    with evaluating(model):
        _, state = model.prefill(model.start(2), tokens_BT[:, :4])
        first, _ = model.extend(state, tokens_BT[:, 4:])
        model.extend(state, tokens_BT.flip(1)[:, :8])
        model.extend(model.select(state, torch.tensor([1, 0, 1])), some_tokens(3, 9))
        again, _ = model.extend(state, tokens_BT[:, 4:])
    assert torch.equal(first, again)


def test_rows_are_selected_joined_and_shortened() -> None:
    model, tokens_BT = transformer(context=12), some_tokens(3, 9)
    with evaluating(model):
        _, state = model.prefill(model.start(3), tokens_BT[:, :5])
        rows_K = torch.tensor([2, 0, 2])
        expected_KV, _ = model.step(state, tokens_BT[:, 5])
        found_KV, longer = model.step(model.select(state, rows_K), tokens_BT[rows_K, 5])
        assert torch.equal(found_KV, expected_KV[rows_K])
        assert model.rewindable(longer) == 12 - 6
        shorter = model.rewind(longer, 3)
        found_KV, _ = model.step(shorter, tokens_BT[rows_K, 3])
        before_BV, _ = model.prefill(model.start(3), tokens_BT[:, :4])
    assert torch.equal(found_KV, before_BV[rows_K])


def test_changed_weights_are_packed_again() -> None:
    model, tokens_BT = transformer(), some_tokens(1, 5)
    with evaluating(model):
        model.extend(model.start(1), tokens_BT)
    with torch.no_grad():
        model.features.block_list[0].widen.weight.mul_(2)
    with evaluating(model):
        found, _ = model.extend(model.start(1), tokens_BT)
    torch.testing.assert_close(found, by_torch(model, tokens_BT), **CLOSE)


def test_weights_that_were_changed_unnoticed_are_packed_again_after_a_change_of_mode() -> None:
    model, tokens_BT = transformer(), some_tokens(1, 5)
    with evaluating(model):
        model.extend(model.start(1), tokens_BT)
    model.features.block_list[0].widen.weight.detach().numpy()[:] *= 2  # as another process would in shared memory
    model.train()
    with evaluating(model):
        found, _ = model.extend(model.start(1), tokens_BT)
        with kernels_suspended():
            expected, _ = model.extend(model.start(1), tokens_BT)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_training_and_gradients_use_torch() -> None:
    model = transformer()
    assert not isinstance(model.start(1).features, StackState)  # gradients are recorded
    model.train()
    with torch.no_grad():
        assert not isinstance(model.start(1).features, StackState)


def rounded_linear(inputs_ND: Tensor, weight_XD: Tensor, bias_X: Tensor | None = None) -> Tensor:
    """A linear layer of 8 bits by its definition: one scale per row of the weights, and one per row of the inputs."""
    scale_X1 = weight_XD.abs().amax(1, keepdim=True) / 127
    scale_N1 = inputs_ND.abs().amax(-1, keepdim=True) / 127
    products_NX = (inputs_ND / scale_N1).round() @ (weight_XD / scale_X1).round().T
    return products_NX * scale_N1 * scale_X1[:, 0] + (0 if bias_X is None else bias_X)


def test_8_bits_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens_BT = transformer(embedding=64, heads=4, layers=2, context=32), some_tokens(4, T)
    exact_BTV = by_torch(model, tokens_BT)
    with evaluating(model):
        model.precision = "int8"
        found_BTV, _ = model.extend(model.start(4), tokens_BT)
    monkeypatch.setattr(torch.nn.functional, "linear", rounded_linear)
    defined_BTV = by_torch(model, tokens_BT)
    # An input that lies between two steps may be rounded to either, and later layers see it.
    effect = float((defined_BTV - exact_BTV).abs().mean())
    assert float((found_BTV - defined_BTV).abs().mean()) < 0.2 * effect
    torch.testing.assert_close(found_BTV.logsumexp(2), torch.zeros(4, T), rtol=0, atol=1e-5)


def test_hypotheses_share_the_memory_of_their_source() -> None:
    model = small_translator("seq2seq-transformer")
    tokens_BS = some_tokens(3, 6)
    mask_BS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 5 + [False]])
    with evaluating(model):
        first = model.start(Source(tokens_BS, mask_BS))
        rows_K = torch.tensor([0, 0, 2, 2, 2])
        widened = model.select(first, rows_K)
        assert widened.sources.numbers is first.sources.numbers
        expected_BV, _ = model.step(first, tokens_BS[:, 0])
        found_KV, _ = model.step(widened, tokens_BS[rows_K, 0])
        together_BV, _ = model.step(join_states([first, widened]), torch.cat([tokens_BS[:, 0], tokens_BS[rows_K, 0]]))
    assert torch.equal(found_KV, expected_BV[rows_K])
    assert torch.equal(together_BV, torch.cat([expected_BV, found_KV]))
