"""Continuous batching: a text that joins and leaves a batch has the numbers it has alone, for every language model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from builders import TEXT_CASES, Case, case_id, one_output, small_model, some_tokens
from chainrule.base.arrays import Array
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states, state_form
from chainrule.decoding import Greedy, Sample, generate
from chainrule.decoding.continuous import PASS_ROWS, ContinuousBatch, Opening, Row, rows_are_independent
from chainrule.decoding.row_sampling import BLOCK, RowSampler

CASES = one_output(TEXT_CASES)


def opened(batch: ContinuousBatch, model: Any, prompt: list[int]) -> Row:
    with evaluating(model):
        log_probs_1V, state = batch.model.prefill(batch.model.start(1), np.array([[0, *prompt]]))
        return batch.open(log_probs_1V[0], state)


def alone(model: Any, prompt: list[int], tokens: list[int]) -> list[Array]:
    """The distributions of one text in a batch of its own."""
    batch = ContinuousBatch(model)
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
    expected = [alone(model, prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    begins, ends, rows, done = [0, 0, 1, 3, 2], [9, 4, 9, 9, 6], {}, [0] * 5
    for tick in range(16):
        for number in range(5):
            if tick == begins[number]:
                rows[number] = opened(batch, model, prompts[number])
        for number, row in rows.items():
            np.testing.assert_array_equal(row.log_probs_V, expected[number][done[number]])
        moving = [number for number in rows if done[number] < ends[number] and (tick != 5 or number != 2)]
        batch.advance([(rows[number], texts[number][done[number]]) for number in moving])
        for number in moving:
            done[number] += 1
        for number in [number for number in rows if done[number] == ends[number]]:
            np.testing.assert_array_equal(rows[number].log_probs_V, expected[number][ends[number]])
            batch.close(rows.pop(number))
    assert done == ends
    assert len(batch) == batch.passes == 0


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_prompts_that_are_read_together_have_the_numbers_that_they_have_alone(case: Case) -> None:
    """Several lengths, and two texts of one prompt, beside a text that has already begun."""
    name, output, options = case
    model = small_model(name, output, **options)
    prompts, counts = [[1, 2], [3, 4], [5], [2, 2]], [1, 2, 1, 1]
    expected = [alone(model, prompt, [4, 1]) for prompt in prompts]
    batch = ContinuousBatch(model)
    first = opened(batch, model, prompts[0])
    batch.advance([(first, 4)])
    openings = [Opening([0, *prompt], [None] * count) for prompt, count in zip(prompts, counts, strict=True)]
    batch.open_all(openings)
    assert [len(opening.rows) for opening in openings] == counts
    rows = [(row, numbers) for opening, numbers in zip(openings, expected, strict=True) for row in opening.rows]
    for row, numbers in rows:
        np.testing.assert_array_equal(row.log_probs_V, numbers[0])
    batch.advance([(first, 1), *((row, 4) for row, _ in rows)])
    np.testing.assert_array_equal(first.log_probs_V, expected[0][2])
    batch.close(first)
    for step, token in ((1, 1), (2, 1)):
        for row, numbers in rows:
            np.testing.assert_array_equal(row.log_probs_V, numbers[step])
        if step == 1:
            batch.advance([(row, token) for row, _ in rows])


@pytest.mark.parametrize("shape", [{"embedding": 16, "context": 24}, {"embedding": 12, "heads": 3, "context": 64}])
def test_a_long_text_has_the_numbers_that_it_has_alone(shape: dict[str, Any]) -> None:
    """Over many positions a sum shows its order: copies of a row that share their past are added in another one."""
    model = small_model("transformer", layers=2, **shape)
    texts = some_tokens(6, 30, seed=5).tolist()
    expected = [alone(model, text[:3], text[3:]) for text in texts]
    batch = ContinuousBatch(model)
    rows = [opened(batch, model, text[:3]) for text in texts]
    for place in range(27):
        for row, found in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(row.log_probs_V, found[place])
        batch.advance([(row, text[3 + place]) for row, text in zip(rows, texts, strict=True)])
    assert batch.passes == 1


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_numbers_are_those_of_log_probs(case: Case) -> None:
    name, output, options = case
    model = small_model(name, output, **options)
    [text] = some_tokens(1, 9, seed=4).tolist()
    rows = alone(model, text[:2], text[2:])
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
    batch.advance([(row, 1) for row in rows])
    assert (len(batch), batch.passes) == (PASS_ROWS + 1, 2)
    batch.close(rows[0])
    batch.advance([(row, 1) for row in rows[1:]])
    assert (len(batch), batch.passes) == (PASS_ROWS, 1)


@pytest.mark.parametrize("name", ["ngram", "transformer"])
def test_independent_rows_of_any_number_and_length_share_a_pass(name: str) -> None:
    model = small_model(name)
    batch = ContinuousBatch(model)
    rows = [opened(batch, model, [1] * (1 + number % 3)) for number in range(3 * PASS_ROWS)]
    batch.advance([(row, 2) for row in rows])
    assert (len(batch), batch.passes) == (3 * PASS_ROWS, 1)
    [pass_rows] = {len(row.group.rows) for row in rows}
    assert pass_rows == 3 * PASS_ROWS, "there are no rows without a text"
    for row in rows[::2]:
        batch.close(row)
    batch.advance([(row, 2) for row in rows[1::2]])
    assert {len(row.group.rows) for row in rows[1::2]} == {3 * PASS_ROWS // 2}


def test_a_transformer_that_torch_computes_has_passes_of_one_size() -> None:
    model = small_model("transformer")
    with kernels_suspended():
        batch = ContinuousBatch(model)
        rows = [opened(batch, model, [1, number]) for number in range(3)]
        batch.advance([(row, 2) for row in rows])
        assert batch.needs_company
        assert {len(row.group.rows) for row in rows} <= {1, PASS_ROWS}


SAMPLING = [Sample(), Sample(0.7, top_k=4), Sample(1.3, top_p=0.8), Sample(min_p=0.3), Sample(0.0), None]


def test_texts_are_drawn_together_as_they_are_alone() -> None:
    """A text has the tokens that `Sample` with its seed draws for it, whatever the options of the others are."""
    model = small_model("transformer")
    batch = ContinuousBatch(model)
    prompts = [[1, number % 5] for number in range(15)]
    with evaluating(model):
        opened_rows = [batch.model.prefill(batch.model.start(1), np.array([[0, *prompt]])) for prompt in prompts]
    rows = [
        batch.open(log_probs_1V[0], state, RowSampler(SAMPLING[number % 5], seed=number))
        for number, (log_probs_1V, state) in enumerate(opened_rows)
    ]
    found: list[list[int]] = [[] for _ in rows]
    for _ in range(2 * BLOCK):  # more than one block of random numbers
        moves = [(row, batch.choose(row)) for row in rows]
        for (_, token), tokens in zip(moves, found, strict=True):
            tokens.append(token)
        batch.advance(moves)
    for number, tokens in enumerate(found):
        options = SAMPLING[number % 5]
        generator = torch.Generator().manual_seed(number)
        choose = Greedy() if options is None else replace(options, generator=generator)
        prompt_T = torch.tensor(prompts[number])
        [expected_T] = generate(model, prompt_T, eos=None, bos=0, max_new_tokens=2 * BLOCK, choose=choose)
        assert tokens == expected_T.tolist()


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
