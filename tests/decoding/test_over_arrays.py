"""Decoding over arrays gives what decoding over tensors gives, and the adapter of tensors what the model gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.base.over_arrays import TensorArrays, over_arrays
from chainrule.decoding import Greedy, Sample, beam_search, generate
from chainrule.decoding.over_arrays import (
    ArrayChoices,
    ArrayChooser,
    ArraySample,
    beam_search_arrays,
    greedy,
    keep,
    stream_arrays,
)
from chainrule.decoding.sample import apply_temperature, keep_min_p, keep_top_k, keep_top_p
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.types import Vocabulary

V = 12


@pytest.fixture(scope="module")
def model() -> Ngram:
    """No two words have equal probabilities: the order of equal hypotheses is not defined."""
    counts_V = 40 * np.arange(2, V + 2)
    tokens = np.random.default_rng(3).permutation(np.repeat(np.arange(V), counts_V))
    config = NgramConfig(order=3, smoothing="witten-bell")
    return Ngram.estimate(config, Vocabulary(V, 1, counts_V), tokens, tokens[:100])


@pytest.mark.parametrize("eos", [1, None])
@pytest.mark.parametrize("prompt", [[], [3, 4, 5]])
def test_greedy_is_identical(model: Ngram, eos: int | None, prompt: list[int]) -> None:
    named = {"eos": eos, "bos": 1, "max_new_tokens": 15}
    (expected,) = generate(model, torch.tensor(prompt, dtype=torch.int64), choose=Greedy(), **named)  # type: ignore[arg-type]
    found = stream_arrays(model.arrays, prompt, choose=greedy, **named)  # type: ignore[arg-type]
    assert [row[0] for row in found] == expected.tolist()


@pytest.mark.parametrize("eos", [1, None])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("beams", [1, 2, 5, 40])
def test_beams_are_identical(model: Ngram, beams: int, penalty: float, eos: int | None) -> None:
    for prompt in ([1], [1, 4, 7], [1, 9, 0, 0]):
        for limit in (1, 4, 9):
            named = {"eos": eos, "beams": beams, "max_new_tokens": limit, "length_penalty": penalty}
            named["num_return_sequences"] = min(beams, 3)
            expected = beam_search(model, model.start(1), torch.tensor([prompt]), **named)[0]  # type: ignore[arg-type]
            found = beam_search_arrays(model.arrays, prompt, **named)  # type: ignore[arg-type]
            assert [one.score for one in found] == pytest.approx([one.score for one in expected], rel=1e-6)
            scores = [one.score for one in expected]
            for one, other in zip(found, expected, strict=True):
                if scores.count(other.score) == 1:  # equal scores have no order
                    assert one.tokens == other.tokens
                    assert one.log_prob == pytest.approx(other.log_prob, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        Sample(),
        Sample(0.7),
        Sample(top_k=4),
        Sample(top_p=0.6),
        Sample(1.3, 6, 0.8),
        Sample(min_p=0.3),
        Sample(1.3, 6, 0.8, 0.2),
    ],
)
def test_the_filters_are_identical(options: Sample) -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        rows = np.log(random.dirichlet(np.full(V, 0.5), 4)).astype(np.float32)
        rows[:, 3] = rows[:, 5]  # ties
        expected = apply_temperature(torch.from_numpy(rows), options.temperature)
        expected = keep_top_p(expected if options.top_k is None else keep_top_k(expected, options.top_k), options.top_p)
        expected = keep_min_p(expected, options.min_p)
        np.testing.assert_allclose(keep(rows, options), expected.numpy(), rtol=1e-6)


def test_draws_follow_the_distribution() -> None:
    probs = np.array([0.5, 0.0, 0.2, 0.3])
    with np.errstate(divide="ignore"):
        rows = np.log(np.tile(probs, (20_000, 1))).astype(np.float32)
    drawn = ArraySample(Sample(), np.random.default_rng(1))(rows)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), probs, atol=0.015)
    assert not (drawn == 1).any()
    again = ArraySample(Sample(), np.random.default_rng(1))(rows)
    assert np.array_equal(drawn, again)


@pytest.mark.parametrize("options", [None, Sample(), Sample(0.0), Sample(0.7, 5, 0.9, 0.02)])
def test_over_tensors_the_same_choices_are_made(options: Sample | None) -> None:
    random = np.random.default_rng(6)
    rows = np.log(random.dirichlet(np.full(V, 0.3), (50, 2))).astype(np.float32)
    rows[:, :, 4] = rows.max(2)  # ties: the first of the best is chosen

    def chooser() -> ArrayChooser:
        return greedy if options is None else ArraySample(options, np.random.default_rng(9))

    expected, over_tensors = chooser(), ArrayChoices(chooser())
    for row_BV in rows:
        assert over_tensors(torch.from_numpy(row_BV)).tolist() == expected(row_BV).tolist()


def test_rows_that_ended_repeat_eos(model: Ngram) -> None:
    choose = ArraySample(Sample(), np.random.default_rng(2))
    steps = list(
        stream_arrays(model.arrays, [2], eos=1, bos=1, max_new_tokens=40, choose=choose, num_return_sequences=4)
    )
    for row in np.array(steps).T.tolist():
        if 1 in row:
            assert set(row[row.index(1) :]) == {1}


def test_the_adapter_of_tensors_is_the_model(model: Ngram) -> None:
    """An n-gram through tensors and natively: every method of the interface."""
    native, adapted = over_arrays(model), TensorArrays(model)
    assert native is model.arrays
    tokens = np.random.default_rng(4).integers(0, V, (3, 6))
    np.testing.assert_array_equal(native.log_probs(tokens), adapted.log_probs(tokens))
    results = []
    for one in (native, adapted):
        row, state = one.prefill(one.start(3), tokens)
        state = one.select(state, np.array([2, 0]))
        followed = one.follow(state, tokens[:2])
        scored, state = one.score(tokens[:2], state)
        probs, state = one.step_probs(state, tokens[:2, 0])
        results.append([row, followed, scored, probs, np.asarray(state)])
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6)
