"""The compiled branch of a hybrid against torch, and what its states promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_source, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.decoding import beam_search
from chainrule.decoding.parallel import draft_in_parallel

FORMS: list[dict[str, Any]] = [
    {"gamma": 0.3},
    {"gamma": 0.0, "hidden": 96, "embedding": 24},
    {"mixing": "learned", "gamma": 0.4, "score": "additive", "hidden": 12},
    {"mixing": "gated", "gamma": 0.2, "score": "dot"},
    {"nar": "ctc", "gamma": 0.0, "score": "additive", "hidden": 80},
    {"gamma": 1.0},
]
LENGTHS = [5, 1, 8, 3]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}


def hybrid(output: str = "softmax", **options: Any) -> Any:
    model = small_translator("hybrid", output, dropout=0.0, **options)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            draw = torch.Generator().manual_seed(number)
            parameter += (
                0.7 * max(parameter.shape[-1:], default=1) ** -0.5 * torch.randn(parameter.shape, generator=draw)
            )
    return model.eval()


def steps(model: Any, tokens_BT: Tensor, lengths: list[int]) -> Tensor:
    """log p after each token, one step at a time -> BTV."""
    state, found = model.start(some_source(lengths)), []
    for token_B in tokens_BT.unbind(1):
        log_probs_BV, state = model.step(state, token_B)
        found.append(log_probs_BV)
    return torch.stack(found, 1)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("output", ["softmax", "adaptive"])
def test_the_kernel_is_torch(form: dict[str, Any], output: str) -> None:
    model, tokens_BT = hybrid(output, **form), some_tokens(4, 6)  # differences grow from step to step
    with evaluating(model):
        assert model.start(some_source(LENGTHS)).memory.compiled is not None
        found_BTV = steps(model, tokens_BT, LENGTHS)
        with kernels_suspended():
            assert model.start(some_source(LENGTHS)).memory.compiled is None
            torch.testing.assert_close(found_BTV, steps(model, tokens_BT, LENGTHS), **CLOSE)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_numbers_do_not_depend_on_the_division_into_calls(form: dict[str, Any], precision: str) -> None:
    model, tokens_BT = hybrid(**form), some_tokens(4, 12)
    model.precision = precision
    with evaluating(model):
        by_steps_BTV = steps(model, tokens_BT, LENGTHS)
        state = model.start(some_source(LENGTHS))
        first_BTV, after = model.extend(state, tokens_BT[:, :5])
        rest_BTV, _ = model.extend(after, tokens_BT[:, 5:])
        assert torch.equal(torch.cat([first_BTV, rest_BTV], 1), by_steps_BTV)
        last_BV, _ = model.prefill(state, tokens_BT)
        assert torch.equal(last_BV, by_steps_BTV[:, -1])
        # Rows in another order, some of them twice.
        rows_K = torch.tensor([2, 2, 0, 3, 3, 1])
        again_KTV, _ = model.extend(model.select(after, rows_K), tokens_BT[rows_K, 5:])
        assert torch.equal(again_KTV, rest_BTV[rows_K])


def test_small_weights_of_8_bits_change_little() -> None:
    model, tokens_BT = small_translator("hybrid", hidden=32, embedding=32).eval(), some_tokens(4, 6)
    with evaluating(model):
        exact_BTV = steps(model, tokens_BT, LENGTHS)
        model.precision = "int8"
        rounded_BTV = steps(model, tokens_BT, LENGTHS)
    assert not torch.equal(exact_BTV, rounded_BTV)
    torch.testing.assert_close(exact_BTV.exp(), rounded_BTV.exp(), rtol=0, atol=0.05)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_draft_is_greedy_search(form: dict[str, Any]) -> None:
    model, source = hybrid(**form), some_source(LENGTHS)
    limits = [9, 3, 12, 7]
    with evaluating(model):
        drafted, passes = draft_in_parallel(model, source, eos=0, limits=limits)
        first_B1 = torch.zeros(4, 1, dtype=torch.int64)
        greedy = beam_search(model, model.start(source), first_B1, eos=0, beams=1, max_new_tokens=limits)
    assert drafted == [best.tokens for best, *_ in greedy]
    assert all(0 < count <= limit for count, limit in zip(passes, limits, strict=True))


@pytest.mark.parametrize("form", [{"gamma": 0.3}, {"gamma": 0.0}, {"mixing": "gated", "hidden": 12}], ids=str)
def test_a_language_model_steps_as_it_reads(form: dict[str, Any]) -> None:
    model: Any = small_model("hybrid-lm", block=4, context=6, **form).eval()
    tokens_BT = some_tokens(3, 11)

    def by_steps() -> Tensor:
        state, found = model.start(3), []
        for token_B in tokens_BT.unbind(1):
            log_probs_BV, state = model.step(state, token_B)
            found.append(log_probs_BV)
        return torch.stack(found, 1)

    with evaluating(model):
        found_BTV = by_steps()
        read_BTV, _ = model.extend(model.start(3), tokens_BT)
        torch.testing.assert_close(found_BTV, read_BTV, **CLOSE)
        with kernels_suspended():
            torch.testing.assert_close(found_BTV, by_steps(), **CLOSE)
        # Within a block the numbers of a draft are those of steps, also after some of it was removed.
        _, state = model.prefill(model.start(3), tokens_BT[:, :1])
        block_BTV, after = model.extend(state, tokens_BT[:, 1:4])
        assert torch.equal(block_BTV, found_BTV[:, 1:4])
        again_BTV, _ = model.extend(model.rewind(after, 2), tokens_BT[:, 2:4])
        assert torch.equal(again_BTV, found_BTV[:, 2:4])
