"""Continuous batching: a text that joins and leaves a batch has the numbers it has alone, for every language model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import TEXT_CASES, Case, case_id, one_output, small_model, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states, state_form
from chainrule.decoding.continuous import PASS_ROWS, ContinuousBatch, Row, rows_are_independent

CASES = one_output(TEXT_CASES)


def opened(batch: ContinuousBatch, model: Any, prompt: list[int]) -> Row:
    with evaluating(model):
        return batch.open(*model.prefill(model.start(1), torch.tensor([[0, *prompt]])))


def alone(model: Any, prompt: list[int], tokens: list[int], pass_rows: int | None) -> list[torch.Tensor]:
    """The distributions of one text in a batch of its own."""
    batch = ContinuousBatch(model, pass_rows)
    row = opened(batch, model, prompt)
    found = [row.log_probs_V]
    for token in tokens:
        batch.advance([(row, token)])
        found.append(row.log_probs_V)
    return found


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_text_has_the_numbers_that_it_has_alone(case: Case) -> None:
    """Texts join at different steps and with different prompts, leave early, and pause."""
    name, output, options = case
    model = small_model(name, output, **options)
    texts = some_tokens(5, 9, seed=3).tolist()
    prompts = [[1, 2], [3, 4], [5], [6, 7, 8], [2, 2]]
    batch = ContinuousBatch(model)
    expected = [alone(model, prompt, text, batch.pass_rows) for prompt, text in zip(prompts, texts, strict=True)]
    begins, ends, rows, done = [0, 0, 1, 3, 2], [9, 4, 9, 9, 6], {}, [0] * 5
    for tick in range(16):
        for number in range(5):
            if tick == begins[number]:
                rows[number] = opened(batch, model, prompts[number])
        for number, row in rows.items():
            torch.testing.assert_close(row.log_probs_V, expected[number][done[number]], rtol=0, atol=0)
        moving = [number for number in rows if done[number] < ends[number] and (tick != 5 or number != 2)]
        batch.advance([(rows[number], texts[number][done[number]]) for number in moving])
        for number in moving:
            done[number] += 1
        for number in [number for number in rows if done[number] == ends[number]]:
            torch.testing.assert_close(rows[number].log_probs_V, expected[number][ends[number]], rtol=0, atol=0)
            batch.close(rows.pop(number))
    assert done == ends
    assert len(batch) == batch.passes == 0


@pytest.mark.parametrize("shape", [{"embedding": 16, "context": 24}, {"embedding": 12, "heads": 3, "context": 64}])
def test_a_long_text_has_the_numbers_that_it_has_alone(shape: dict[str, Any]) -> None:
    """Over many positions a sum shows its order: copies of a row that share their past are added in another one."""
    model = small_model("transformer", layers=2, **shape)
    texts = some_tokens(6, 30, seed=5).tolist()
    expected = [alone(model, text[:3], text[3:], None) for text in texts]
    batch = ContinuousBatch(model)
    rows = [opened(batch, model, text[:3]) for text in texts]
    for place in range(27):
        for row, found in zip(rows, expected, strict=True):
            torch.testing.assert_close(row.log_probs_V, found[place], rtol=0, atol=0)
        batch.advance([(row, text[3 + place]) for row, text in zip(rows, texts, strict=True)])
    assert batch.passes == 1


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_numbers_are_those_of_log_probs(case: Case) -> None:
    name, output, options = case
    model = small_model(name, output, **options)
    [text] = some_tokens(1, 9, seed=4).tolist()
    rows = alone(model, text[:2], text[2:], None)
    with evaluating(model):
        expected_T = model.log_probs(torch.tensor([text]))[0]
    found = [float(row_V[token]) for row_V, token in zip(rows, text[2:], strict=False)]
    torch.testing.assert_close(torch.tensor(found), expected_T[2:].float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ngram", "lstm", "transformer", "mixture"])
def test_states_of_equal_form_are_joined_row_by_row(name: str) -> None:
    model = small_model(name)
    with evaluating(model):
        state, other = (model.prefill(model.start(2), some_tokens(2, 3, seed))[1] for seed in (0, 1))
        assert state_form(state) == state_form(other)
        token_B = torch.tensor([1, 2, 3, 4])
        together_BV, _ = model.step(join_states([state, other]), token_B)
        separate = [model.step(state, token_B[:2])[0], model.step(other, token_B[2:])[0]]
    torch.testing.assert_close(together_BV, torch.cat(separate), rtol=1e-5, atol=1e-6)


def test_prefixes_of_different_lengths_have_different_forms_in_a_cache() -> None:
    model = small_model("transformer")
    with evaluating(model), kernels_suspended():
        short, long = (model.prefill(model.start(1), some_tokens(1, length))[1] for length in (2, 3))
    assert state_form(short) != state_form(long)


def test_the_engine_joins_prefixes_of_different_lengths() -> None:
    model = small_model("transformer")
    with evaluating(model):
        states = [model.prefill(model.start(1), some_tokens(1, length))[1] for length in (2, 7, 5)]
        token_B = torch.tensor([1, 2, 3])
        together_BV, _ = model.step(join_states(states), token_B)
        separate = [model.step(state, token_1)[0] for state, token_1 in zip(states, token_B.split(1), strict=True)]
    assert torch.equal(together_BV, torch.cat(separate))


def test_equal_forms_share_a_pass() -> None:
    model = small_model("lstm")
    batch = ContinuousBatch(model, PASS_ROWS)
    rows = [opened(batch, model, [number % 5]) for number in range(PASS_ROWS + 1)]
    assert (len(batch), batch.passes) == (PASS_ROWS + 1, 2)
    batch.close(rows[0])
    batch.advance([(row, 1) for row in rows[1:]])
    assert (len(batch), batch.passes) == (PASS_ROWS, 1)


class _Crowded:
    """A model whose numbers depend on the neighbours of a row."""

    vocab_size = 4

    def start(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch)

    def step(self, state: torch.Tensor, token_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (token_B.sum() * torch.ones(len(token_B), 4)).log_softmax(1) + token_B.sum(), state


def test_a_model_whose_rows_depend_on_their_neighbours_is_recognised() -> None:
    assert not rows_are_independent(_Crowded(), PASS_ROWS)  # type: ignore[arg-type]
    assert rows_are_independent(small_model("ngram"), PASS_ROWS)
