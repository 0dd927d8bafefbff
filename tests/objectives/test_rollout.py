"""Drawn translations against everything a small translator can say, and their scores against steps.

Legend: B sources, N rows, T time, V vocabulary, Y sequences there are.
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
    as_drawn,
    assert_close,
    chi_square,
    everything,
    gradients,
    one_row,
    sequence_log_probs,
    table_batch,
)

from builders import OUTPUT_LAYERS, TRANSLATORS, small_translator, some_source
from chainrule.objectives import rollout
from chainrule.objectives.rollout import Drawn, alike, at_rest, draw, drawn_from, forced, pick, sequences
from chainrule.types import Source, Vocabulary

SOURCES = some_source([5, 2, 4], padding=1)
EVEN = Vocabulary(3, EOS, np.ones(3, np.int64))


def cut(drawn: Drawn) -> list[tuple[int, ...]]:
    """The rows as far as their weights reach."""
    lengths = drawn.weights_NT.sum(1).long().tolist()
    return [tuple(row[:length]) for row, length in zip(drawn.tokens_NT.tolist(), lengths, strict=True)]


def counted(drawn: Drawn, rows: list[tuple[int, ...]]) -> torch.Tensor:
    """How often each of these sequences was drawn -> Y."""
    seen = cut(drawn)
    assert set(seen) <= set(rows)
    return torch.tensor([seen.count(row) for row in rows])


# Drawing


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_sequences_are_drawn_as_often_as_they_are_probable(temperature: float) -> None:
    torch.manual_seed(0)
    model, rows, source = TableTranslator(), everything(3, 3), table_batch([[1], [2]]).source
    assert source is not None
    drawn = draw(model, source, 3, eos=EOS, samples=3000, temperature=temperature)
    tempered = TableTranslator()
    tempered.scores_ATVV.data /= temperature
    for number in range(2):
        own = Drawn(*(part[number * 3000 : (number + 1) * 3000] for part in drawn))
        chances_Y = sequence_log_probs(tempered, one_row(source, number), rows).exp().detach()
        assert float(chances_Y.sum()) == pytest.approx(1)
        assert chi_square(counted(own, rows), chances_Y) < 4


@pytest.mark.parametrize("name", TRANSLATORS)
def test_every_translator_draws_what_it_finds_probable(name: str) -> None:
    torch.manual_seed(1)
    model, rows = small_translator(name, vocabulary=EVEN), everything(3, 3)
    source = some_source([3, 1], size=3)
    drawn = draw(model, source, 3, eos=EOS, samples=1500)
    with torch.no_grad():
        for number in range(2):
            own = Drawn(*(part[number * 1500 : (number + 1) * 1500] for part in drawn))
            chances_Y = sequence_log_probs(model, one_row(source, number), rows).exp()
            assert chi_square(counted(own, rows), chances_Y) < 4


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSLATORS)
def test_greedy_is_the_chain_of_the_most_probable(name: str) -> None:
    model = small_translator(name)
    drawn = draw(model, SOURCES, 9, eos=EOS, samples=0, greedy=True)
    for number in range(3):
        row, source, tokens = [], one_row(SOURCES, number), torch.zeros(1, 0).long()
        while len(row) < 9 and (not row or row[-1] != EOS):
            tried_VT = torch.cat([tokens.expand(13, -1), torch.arange(13)[:, None]], 1)
            every = Source(*(part.expand(13, -1) for part in source))
            row.append(int(model.log_probs(tried_VT, every)[:, -1].argmax()))
            tokens = torch.tensor([row])
        assert drawn.tokens_NT[number, : len(row)].tolist() == row
        assert drawn.weights_NT[number].tolist() == [
            float(place < len(row)) for place in range(drawn.tokens_NT.shape[1])
        ]


def test_the_rows_of_a_source_are_adjacent_and_the_greedy_one_is_first() -> None:
    """Source a says word a + 1 over and over, but for chance one time in three."""
    model = TableTranslator(sources=4, places=5, size=6)
    with torch.no_grad():
        model.scores_ATVV.zero_()
        for number in range(4):
            model.scores_ATVV[number, :, :, number + 1] = 2.3  # ten times as probable as another
    source = table_batch([[1]] * 4).source
    assert source is not None
    torch.manual_seed(3)
    drawn = draw(model, source, 5, eos=EOS, samples=2, greedy=True)
    assert drawn.tokens_NT.shape == (12, 5)
    assert drawn.tokens_NT[::3].tolist() == [[number] * 5 for number in (1, 2, 3, 4)]
    for number, rows_WT in enumerate(drawn.tokens_NT.view(4, 3, 5)):
        sampled = rows_WT[1:][drawn.weights_NT.view(4, 3, 5)[number, 1:] > 0]
        assert sampled.mode().values == number + 1
    assert not torch.equal(drawn.tokens_NT[1::3], drawn.tokens_NT[2::3])


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=5))
def test_weights_reach_up_to_and_with_the_first_eos(rows: list[list[int]]) -> None:
    drawn = drawn_from(torch.tensor(rows), EOS)
    for row, weights, bare in zip(rows, drawn.weights_NT.tolist(), sequences(drawn, EOS), strict=True):
        length = row.index(EOS) + 1 if EOS in row else 4
        assert weights == [1.0] * length + [0.0] * (4 - length)
        assert bare == [token for token in row[:length] if token != EOS]


def test_what_follows_the_end_is_eos_and_no_row_is_longer_than_the_limit_or_the_window() -> None:
    torch.manual_seed(0)
    model, source = TableTranslator(places=6), table_batch([[1], [2]]).source
    assert source is not None
    for limit, most in ((4, 4), (50, 6)):
        drawn = draw(model, source, limit, eos=EOS, samples=300)
        assert drawn.tokens_NT.shape == (600, most)
        assert torch.equal(drawn_from(drawn.tokens_NT, EOS).weights_NT, drawn.weights_NT)
        assert (drawn.tokens_NT[drawn.weights_NT == 0] == EOS).all()
        assert drawn.weights_NT.sum(1).unique().tolist() == list(range(1, most + 1))


@pytest.mark.parametrize("name", TRANSLATORS)
def test_ended_rows_are_dropped_and_nothing_else_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_translator(name), []
    source = Source(*(part.repeat(10, 1) for part in some_source([5, 1, 3, 2], padding=2)))
    step = model.step
    model.step = lambda state, token_B: (rows.append(len(token_B)), step(state, token_B))[1]
    kept = {}
    for share in (rollout.ALIVE, 0.0, 1.0):
        monkeypatch.setattr(rollout, "ALIVE", share)
        kept[share], stepped = draw(model, source, 12, eos=EOS, samples=0, greedy=True), list(rows)
        rows.clear()
        lengths_N = kept[share].weights_NT.sum(1)
        going = [int((lengths_N > place).sum()) for place in range(int(lengths_N.max()))]
        if share == 0.0:
            assert stepped == [40] * len(going)
        elif share == 1.0:
            assert stepped == going
        else:
            assert all(
                now <= most <= max(now / share, now + 1) + 1e-9 for now, most in zip(going, stepped, strict=True)
            )
    for one in kept.values():
        assert torch.equal(one.tokens_NT, kept[0.0].tokens_NT)


def test_sources_that_are_not_written_together_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small_translator("seq2seq-transformer"), []
    source = some_source([5, 1, 3, 2, 4], padding=2)
    whole = draw(model, source, 12, eos=EOS, samples=0, greedy=True)
    step = model.step
    model.step = lambda state, token_B: (rows.append(len(token_B)), step(state, token_B))[1]
    for name, most in (("MOST_ROWS", 7), ("TABLE_ENTRIES", 7 * 13)):  # two sources of three rows each
        with monkeypatch.context() as patch:
            patch.setattr(rollout, name, most)
            drawn = draw(model, source, 12, eos=EOS, samples=2, greedy=True)
        assert max(rows) == 6
        assert drawn.tokens_NT.shape[0] == 15
        T = min(whole.tokens_NT.shape[1], drawn.tokens_NT.shape[1])
        assert torch.equal(drawn.tokens_NT[::3, :T], whole.tokens_NT[:, :T])
        assert torch.equal(drawn.weights_NT[::3].sum(1), whole.weights_NT.sum(1))


def test_a_draw_knows_no_dropout_and_leaves_every_module_in_its_mode() -> None:
    model = small_translator("seq2seq-transformer", dropout=0.9)
    steady = draw(model.eval(), SOURCES, 9, eos=EOS, samples=0, greedy=True)
    model.train()
    model.encoder.eval()  # as a part that is not to be trained would be
    modes = [module.training for module in model.modules()]
    again = draw(model, SOURCES, 9, eos=EOS, samples=0, greedy=True)
    assert torch.equal(steady.tokens_NT, again.tokens_NT)
    assert [module.training for module in model.modules()] == modes
    assert len(set(modes)) == 2
    with pytest.raises(KeyError), at_rest(model):
        raise KeyError
    assert [module.training for module in model.modules()] == modes


def test_a_word_is_picked_by_its_probability_and_never_without_one() -> None:
    torch.manual_seed(0)
    chances_V = torch.rand(40) ** 3
    chances_V[[0, 7, 39]] = 0
    log_probs_NV = (chances_V / chances_V.sum()).log().expand(20_000, -1)
    assert chi_square(pick(log_probs_NV).bincount(minlength=40), chances_V) < 4
    assert chi_square(pick(log_probs_NV, 0.5).bincount(minlength=40), chances_V**2) < 4
    impossible_NV = torch.tensor([0.0, 1.0, 0.0]).log().expand(1000, -1)
    assert pick(impossible_NV).unique().tolist() == [1]


# Scoring


def some_rows() -> Drawn:
    return as_drawn([(3, 1, 4, 1, 5, 9, 2, 6), (EOS,), (5, 3, EOS), (5, 8, 9, 7, EOS), (2, 12, EOS)])


@pytest.mark.parametrize(
    ("name", "output"),
    [*((name, "softmax") for name in TRANSLATORS), *(("seq2seq-transformer", output) for output in OUTPUT_LAYERS)],
)
def test_forced_scores_are_the_sums_of_the_steps_and_have_their_gradients(
    name: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, drawn, source_N = small_translator(name, output), some_rows(), torch.tensor([2, 0, 1, 1, 2])
    one_pass = forced(model, SOURCES, source_N, drawn, EOS)
    monkeypatch.setattr(rollout, "FEW_TOKENS", 0)
    in_parts = forced(model, SOURCES, source_N, drawn, EOS)

    def alone() -> torch.Tensor:
        pairs = zip(source_N, cut(drawn), strict=True)
        return torch.cat([sequence_log_probs(model, one_row(SOURCES, number), [row]) for number, row in pairs])

    with torch.no_grad():
        steps_N = alone()
    weights_N = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])
    expected = gradients(alone() @ weights_N, model)
    for scores_N in (one_pass, in_parts):
        torch.testing.assert_close(scores_N, steps_N, rtol=1e-4, atol=1e-4)
        assert_close(gradients(scores_N @ weights_N, model), expected, rtol=1e-4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.sampled_from([0, 100, 512]))
def test_rows_are_read_with_others_of_like_length(lengths: list[int], few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout, "FEW_TOKENS", few)
        parts = alike(lengths)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert [lengths[row] for part in parts for row in part] == sorted(lengths, reverse=True)
    for part in parts:
        longest = lengths[part[0]]
        early = few // longest + 1  # as many rows as are few
        assert all(lengths[row] >= rollout.ALIKE * longest for row in part[early:])
    for part, after in itertools.pairwise(parts):
        assert lengths[after[0]] < rollout.ALIKE * lengths[part[0]]
        assert len(part) * lengths[part[0]] > few


def test_rows_of_one_part_are_padded_as_little_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "FEW_TOKENS", 0)
    read: list[Any] = []

    class Watched(TableTranslator):
        def forward(self, batch: Any, state: Any = None) -> Any:
            read.append((tuple(batch.inputs_BT.shape), tuple(batch.source.tokens_BS.shape)))
            return super().forward(batch, state)

    source = some_source([4, 1], padding=3, size=2)
    forced(Watched(places=8, size=13), source, torch.tensor([1, 0, 1, 0, 0]), some_rows(), EOS)
    assert read == [((1, 8), (1, 2)), ((1, 5), (1, 5)), ((2, 3), (2, 5)), ((1, 1), (1, 5))]
