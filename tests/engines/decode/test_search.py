"""Choices inside the engine against those of the general decoders: the same tokens and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_tokens
from chainrule.base.modes import evaluating
from chainrule.decoding import Greedy, beam_search, generate
from chainrule.decoding.beam import BeamStep
from chainrule.engines.decode.candidates import choose_continuations
from chainrule.types import Source, SteppingModel

EOS = 0


class General(SteppingModel):
    """The same model, for which the decoders choose."""

    def __init__(self, model: Any) -> None:
        self.model, self.vocab_size = model, model.vocab_size
        self.start, self.step, self.prefill, self.select = model.start, model.step, model.prefill, model.select


def sharpened(model: Any, seed: int, precision: str = "float32") -> Any:
    """The model with random weights, which make its choices differ from text to text."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += 2 * parameter.shape[-1] ** -0.5 * torch.randn(parameter.shape, generator=draw)
    model.precision = precision
    return model.eval()


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_chunks_are_greedy_steps(seed: int, precision: str) -> None:
    model = sharpened(small_model("transformer", context=24), seed, precision)
    for eos in (None, *range(4)):
        for prompt in ([], [3, 1, 2], list(range(1, 11)) * 2):
            options: Any = {"eos": eos, "bos": EOS, "max_new_tokens": 70, "choose": Greedy()}
            prompt_T = torch.tensor(prompt, dtype=torch.int64)
            (found,), (expected,) = (generate(one, prompt_T, **options) for one in (model, General(model)))
            assert found.tolist() == expected.tolist()


def test_a_greedy_chunk_leaves_the_state_of_its_steps() -> None:
    model = sharpened(small_model("transformer", context=40), 1)
    with evaluating(model):
        _, before = model.prefill(model.start(1), torch.tensor([[EOS, 3]]))
        tokens, after = model.continue_greedily(before, torch.tensor([5]), 7, None)
        again, _ = model.continue_greedily(before, torch.tensor([5]), 7, None)  # the old state is as it was
        by_steps = before
        for token in [5, *tokens[:-1]]:
            _, by_steps = model.step(by_steps, torch.tensor([token]))
        assert list(tokens) == list(again)
        assert len(tokens) == 7
        one_1V, other_1V = (model.step(state, torch.tensor([2]))[0] for state in (after, by_steps))
        assert torch.equal(one_1V, other_1V)


def search(model: Any, state: Any, prompts: int, beams: int, **options: Any) -> tuple[Any, list[BeamStep]]:
    steps: list[BeamStep] = []
    first_B1 = torch.full((prompts, 1), EOS)
    limits = [6 + 3 * number for number in range(prompts)]
    found = beam_search(
        model, state, first_B1, eos=EOS, beams=beams, max_new_tokens=limits, observer=steps.append, **options
    )
    return found, steps


def check_same(one: tuple[Any, list[BeamStep]], other: tuple[Any, list[BeamStep]]) -> None:
    """Check that hypotheses and candidates are equal, number by number."""
    assert one[0] == other[0]
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert torch.equal(mine.candidates.log_prob_AM, theirs.candidates.log_prob_AM)
        assert torch.equal(mine.candidates.cell_AM, theirs.candidates.cell_AM)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_beams_of_the_engine_are_those_of_beam_search(beams: int, precision: str) -> None:
    for seed in range(5):
        model = sharpened(small_translator("seq2seq-transformer"), seed, precision)
        tokens_BS = some_tokens(3, 7, seed=seed)
        mask_BS = torch.arange(7) < torch.tensor([[7], [4], [5]])
        with torch.inference_mode():
            state = model.start(Source(tokens_BS, mask_BS))
        options = {"length_penalty": 0.5 * seed, "num_return_sequences": min(beams, 2)}
        check_same(*(search(one, state, 3, beams, **options) for one in (model, General(model))))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_the_encoder_of_the_engine_is_that_of_torch(positions: str) -> None:
    model = small_translator("seq2seq-transformer", positions=positions).eval()
    tokens_BS = some_tokens(4, 7)
    mask_BS = torch.arange(7) < torch.tensor([[7], [4], [5], [1]])
    source = Source(tokens_BS, mask_BS)
    with torch.inference_mode():
        stack = model.encoder_engine()
        assert stack is not None
        found_ND = model._encode_real(source)
        torch.testing.assert_close(found_ND, model.encode(source)[mask_BS], rtol=1e-4, atol=1e-4)
        alone = [model._encode_real(Source(row[None, :count], row[None, :count] >= 0))
                 for row, count in zip(tokens_BS, mask_BS.sum(1).tolist(), strict=True)]  # fmt: skip
    assert torch.equal(found_ND, torch.cat(alone))  # neighbours and padding change nothing


@pytest.mark.parametrize("beams", [1, 4])
def test_beams_of_a_language_model_pass_the_window(beams: int) -> None:
    for seed in range(3):
        model = sharpened(small_model("transformer", context=8), seed)
        with torch.inference_mode():
            state = model.start(4)
        check_same(*(search(one, state, 4, beams) for one in (model, General(model))))


@pytest.mark.parametrize("V", [1, 7, 64, 65, 200, 1000])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_best_continuations_are_the_first_of_all_in_order(V: int, count: int) -> None:
    draw = np.random.default_rng(V + count)
    A, W, step = 3, 4, V + 5
    scores = draw.integers(-9, 9, A * W * step).astype(np.float32)  # with many equals
    log_prob_AW, shift_R = (-draw.random(shape).astype(np.float32).round(1) for shape in ((A, W), (A * W,)))
    log_prob_AW[1, 2] = -np.inf
    count = min(count, W * V)
    best_AM, cell_AM = np.empty((A, count), np.float32), np.empty((A, count), np.int64)
    choose_continuations(log_prob_AW, scores, step, V, shift_R, best_AM, cell_AM)
    total_RV = log_prob_AW.reshape(-1, 1) + (scores.reshape(A * W, step)[:, :V] - shift_R[:, None])
    total_AN = total_RV.reshape(A, W * V)
    order_AM = np.argsort(-total_AN, axis=1, kind="stable")[:, :count]
    assert np.array_equal(best_AM, np.take_along_axis(total_AN, order_AM, 1))
    assert np.array_equal(cell_AM, order_AM + np.arange(0, A * W * V, W * V)[:, None])


def test_the_state_of_a_beam_is_not_changed_by_its_steps() -> None:
    model = sharpened(small_translator("seq2seq-transformer"), 0)
    tokens_BS = some_tokens(2, 5)
    with torch.inference_mode():
        state = model.start(Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool)))
        _, state = model.prefill(state, torch.full((2, 1), EOS))
        token_R, log_prob_AW = torch.tensor([1, 2]), torch.zeros(2, 1)
        first, second = (model.best_continuations(state, token_R, log_prob_AW, 4) for _ in range(2))

    def numbers(found: Any) -> list[Tensor]:
        return [found[0], found[1], model.step(found[2], token_R)[0]]

    for one, other in zip(numbers(first), numbers(second), strict=True):
        assert torch.equal(one, other)
