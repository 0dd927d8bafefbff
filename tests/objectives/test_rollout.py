"""Sampled translations against all translations of a small translator, and their scores against steps.

N is the number of enumerated sequences.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translators import (
    EOS,
    TableTranslator,
    all_sequences,
    as_samples,
    assert_close,
    chi_square,
    gradients,
    one_row,
    sequence_log_probs,
    table_batch,
)

from builders import OUTPUT_LAYERS, TRANSLATORS, small_translator, some_source
from chainrule.objectives import rollout
from chainrule.objectives.rollout import (
    Samples,
    evaluation_mode,
    group_by_length,
    make_samples,
    sample_tokens,
    sample_translations,
    score_samples,
    token_lists,
)
from chainrule.types import Source, Vocabulary

SOURCES = some_source([5, 2, 4], padding=1)
EVEN = Vocabulary(3, EOS, np.ones(3, np.int64))


def token_tuples(samples: Samples) -> list[tuple[int, ...]]:
    """The tokens of weight 1 of each row."""
    lengths = samples.weights_RT.sum(1).long().tolist()
    return [tuple(row[:length]) for row, length in zip(samples.tokens_RT.tolist(), lengths, strict=True)]


def count_rows(samples: Samples, rows: list[tuple[int, ...]]) -> torch.Tensor:
    """How often each of these sequences was sampled -> N."""
    sampled = token_tuples(samples)
    assert set(sampled) <= set(rows)
    return torch.tensor([sampled.count(row) for row in rows])


# Sampling


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_samples_follow_the_probabilities_of_sequences(temperature: float) -> None:
    torch.manual_seed(0)
    model, rows, source = TableTranslator(), all_sequences(3, 3), table_batch([[1], [2]]).source
    assert source is not None
    samples = sample_translations(model, source, 3, eos=EOS, samples=3000, temperature=temperature)
    tempered = TableTranslator()
    tempered.scores_ATVV.data /= temperature
    for number in range(2):
        own = Samples(*(part[number * 3000 : (number + 1) * 3000] for part in samples))
        probs_N = sequence_log_probs(tempered, one_row(source, number), rows).exp().detach()
        assert float(probs_N.sum()) == pytest.approx(1)
        assert chi_square(count_rows(own, rows), probs_N) < 4


@pytest.mark.parametrize("name", TRANSLATORS)
def test_samples_of_every_translator_follow_its_distribution(name: str) -> None:
    torch.manual_seed(1)
    model, rows = small_translator(name, vocabulary=EVEN), all_sequences(3, 3)
    source = some_source([3, 1], size=3)
    samples = sample_translations(model, source, 3, eos=EOS, samples=1500)
    with torch.no_grad():
        for number in range(2):
            own = Samples(*(part[number * 1500 : (number + 1) * 1500] for part in samples))
            probs_N = sequence_log_probs(model, one_row(source, number), rows).exp()
            assert chi_square(count_rows(own, rows), probs_N) < 4


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSLATORS)
def test_the_greedy_row_takes_the_most_probable_token_at_each_step(name: str) -> None:
    model = small_translator(name)
    samples = sample_translations(model, SOURCES, 9, eos=EOS, samples=0, greedy=True)
    for number in range(3):
        row, source, tokens = [], one_row(SOURCES, number), torch.zeros(1, 0).long()
        while len(row) < 9 and (not row or row[-1] != EOS):
            tried_VT = torch.cat([tokens.expand(13, -1), torch.arange(13)[:, None]], 1)
            every = Source(*(part.expand(13, -1) for part in source))
            row.append(int(model.log_probs(tried_VT, every)[:, -1].argmax()))
            tokens = torch.tensor([row])
        assert samples.tokens_RT[number, : len(row)].tolist() == row
        assert samples.weights_RT[number].tolist() == [float(t < len(row)) for t in range(samples.tokens_RT.shape[1])]


def test_the_rows_of_a_source_are_adjacent_and_the_greedy_one_is_first() -> None:
    """Source number a gives token a + 1 with two thirds of the probability."""
    model = TableTranslator(sources=4, places=5, size=6)
    with torch.no_grad():
        model.scores_ATVV.zero_()
        for number in range(4):
            model.scores_ATVV[number, :, :, number + 1] = 2.3  # ten times as probable as each other token
    source = table_batch([[1]] * 4).source
    assert source is not None
    torch.manual_seed(3)
    samples = sample_translations(model, source, 5, eos=EOS, samples=2, greedy=True)
    assert samples.tokens_RT.shape == (12, 5)
    assert samples.tokens_RT[::3].tolist() == [[number] * 5 for number in (1, 2, 3, 4)]
    for number, rows_WT in enumerate(samples.tokens_RT.view(4, 3, 5)):
        sampled = rows_WT[1:][samples.weights_RT.view(4, 3, 5)[number, 1:] > 0]
        assert sampled.mode().values == number + 1
    assert not torch.equal(samples.tokens_RT[1::3], samples.tokens_RT[2::3])


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=5))
def test_weights_are_one_up_to_and_including_the_first_eos(rows: list[list[int]]) -> None:
    samples = make_samples(torch.tensor(rows), EOS)
    for row, weights, bare in zip(rows, samples.weights_RT.tolist(), token_lists(samples, EOS), strict=True):
        length = row.index(EOS) + 1 if EOS in row else 4
        assert weights == [1.0] * length + [0.0] * (4 - length)
        assert bare == [token for token in row[:length] if token != EOS]


def test_rows_are_padded_with_eos_and_end_at_the_limit_or_the_window() -> None:
    torch.manual_seed(0)
    model, source = TableTranslator(places=6), table_batch([[1], [2]]).source
    assert source is not None
    for limit, longest in ((4, 4), (50, 6)):
        samples = sample_translations(model, source, limit, eos=EOS, samples=300)
        assert samples.tokens_RT.shape == (600, longest)
        assert torch.equal(make_samples(samples.tokens_RT, EOS).weights_RT, samples.weights_RT)
        assert (samples.tokens_RT[samples.weights_RT == 0] == EOS).all()
        assert samples.weights_RT.sum(1).unique().tolist() == list(range(1, longest + 1))


@pytest.mark.parametrize("name", TRANSLATORS)
def test_dropping_ended_rows_does_not_change_the_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_translator(name), []
    source = Source(*(part.repeat(10, 1) for part in some_source([5, 1, 3, 2], padding=2)))
    step = model.step
    model.step = lambda state, token_B: (rows.append(len(token_B)), step(state, token_B))[1]
    kept = {}
    for share in (rollout.ACTIVE_SHARE, 0.0, 1.0):
        monkeypatch.setattr(rollout, "ACTIVE_SHARE", share)
        kept[share], stepped = sample_translations(model, source, 12, eos=EOS, samples=0, greedy=True), list(rows)
        rows.clear()
        lengths_R = kept[share].weights_RT.sum(1)
        active = [int((lengths_R > t).sum()) for t in range(int(lengths_R.max()))]
        if share == 0.0:
            assert stepped == [40] * len(active)
        elif share == 1.0:
            assert stepped == active
        else:
            assert all(
                now <= stepped_now <= max(now / share, now + 1) + 1e-9
                for now, stepped_now in zip(active, stepped, strict=True)
            )
    for one in kept.values():
        assert torch.equal(one.tokens_RT, kept[0.0].tokens_RT)


def test_generating_sources_in_parts_does_not_change_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_translator("seq2seq-transformer"), []
    source = some_source([5, 1, 3, 2, 4], padding=2)
    whole = sample_translations(model, source, 12, eos=EOS, samples=0, greedy=True)
    step = model.step
    model.step = lambda state, token_B: (rows.append(len(token_B)), step(state, token_B))[1]
    for name, limit in (("MAX_ROWS", 7), ("TABLE_ENTRIES", 7 * 13)):  # two sources of three rows each
        with monkeypatch.context() as patch:
            patch.setattr(rollout, name, limit)
            samples = sample_translations(model, source, 12, eos=EOS, samples=2, greedy=True)
        assert max(rows) == 6
        assert samples.tokens_RT.shape[0] == 15
        T = min(whole.tokens_RT.shape[1], samples.tokens_RT.shape[1])
        assert torch.equal(samples.tokens_RT[::3, :T], whole.tokens_RT[:, :T])
        assert torch.equal(samples.weights_RT[::3].sum(1), whole.weights_RT.sum(1))


def test_sampling_is_without_dropout_and_restores_the_mode_of_every_module() -> None:
    model = small_translator("seq2seq-transformer", dropout=0.9)
    steady = sample_translations(model.eval(), SOURCES, 9, eos=EOS, samples=0, greedy=True)
    model.train()
    model.encoder.eval()  # like a frozen part
    modes = [module.training for module in model.modules()]
    again = sample_translations(model, SOURCES, 9, eos=EOS, samples=0, greedy=True)
    assert torch.equal(steady.tokens_RT, again.tokens_RT)
    assert [module.training for module in model.modules()] == modes
    assert len(set(modes)) == 2
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert [module.training for module in model.modules()] == modes


def test_tokens_are_sampled_by_their_probability_and_never_if_impossible() -> None:
    torch.manual_seed(0)
    probs_V = torch.rand(40) ** 3
    probs_V[[0, 7, 39]] = 0
    log_probs_BV = (probs_V / probs_V.sum()).log().expand(20_000, -1)
    assert chi_square(sample_tokens(log_probs_BV).bincount(minlength=40), probs_V) < 4
    assert chi_square(sample_tokens(log_probs_BV, 0.5).bincount(minlength=40), probs_V**2) < 4
    impossible_BV = torch.tensor([0.0, 1.0, 0.0]).log().expand(1000, -1)
    assert sample_tokens(impossible_BV).unique().tolist() == [1]


# Scoring


def some_samples() -> Samples:
    return as_samples([(3, 1, 4, 1, 5, 9, 2, 6), (EOS,), (5, 3, EOS), (5, 8, 9, 7, EOS), (2, 12, EOS)])


@pytest.mark.parametrize(
    ("name", "output"),
    [*((name, "softmax") for name in TRANSLATORS), *(("seq2seq-transformer", output) for output in OUTPUT_LAYERS)],
)
def test_scores_and_their_gradients_equal_those_of_single_sequences(
    name: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples, source_R = small_translator(name, output), some_samples(), torch.tensor([2, 0, 1, 1, 2])
    one_pass = score_samples(model, SOURCES, source_R, samples, EOS)
    monkeypatch.setattr(rollout, "SMALL_GROUP", 0)
    in_parts = score_samples(model, SOURCES, source_R, samples, EOS)

    def alone() -> torch.Tensor:
        pairs = zip(source_R, token_tuples(samples), strict=True)
        return torch.cat([sequence_log_probs(model, one_row(SOURCES, number), [row]) for number, row in pairs])

    with torch.no_grad():
        steps_R = alone()
    weights_R = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])
    expected = gradients(alone() @ weights_R, model)
    for scores_R in (one_pass, in_parts):
        torch.testing.assert_close(scores_R, steps_R, rtol=1e-4, atol=1e-4)
        assert_close(gradients(scores_R @ weights_R, model), expected, rtol=1e-4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.sampled_from([0, 100, 512]))
def test_groups_contain_rows_of_similar_length(lengths: list[int], small: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout, "SMALL_GROUP", small)
        groups = group_by_length(lengths)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    assert [lengths[row] for group in groups for row in group] == sorted(lengths, reverse=True)
    for group in groups:
        longest = lengths[group[0]]
        early = small // longest + 1  # rows that any group may have
        assert all(lengths[row] >= rollout.SIMILAR_LENGTH * longest for row in group[early:])
    for group, after in itertools.pairwise(groups):
        assert lengths[after[0]] < rollout.SIMILAR_LENGTH * lengths[group[0]]
        assert len(group) * lengths[group[0]] > small


def test_a_group_is_padded_only_to_its_longest_row_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "SMALL_GROUP", 0)
    shapes: list[Any] = []

    class RecordingTranslator(TableTranslator):
        def forward(self, batch: Any, state: Any = None) -> Any:
            shapes.append((tuple(batch.inputs_BT.shape), tuple(batch.source.tokens_BS.shape)))
            return super().forward(batch, state)

    source = some_source([4, 1], padding=3, size=2)
    score_samples(RecordingTranslator(places=8, size=13), source, torch.tensor([1, 0, 1, 0, 0]), some_samples(), EOS)
    assert shapes == [((1, 8), (1, 2)), ((1, 5), (1, 5)), ((2, 3), (2, 5)), ((1, 1), (1, 5))]
