"""Parallel decoding: drafts do not change greedy search, and one pass gives the most probable token per position."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from builders import letter_pairs, small_options, small_translator, some_source, write_pairs
from chainrule.checkpoint.build import load_model
from chainrule.config import RunConfig
from chainrule.data.pairs import pad_sources
from chainrule.decoding import beam_search
from chainrule.decoding.parallel import draft_in_parallel, translate_in_parallel
from chainrule.errors import ConfigError
from chainrule.models.hybrid_compiled import second_best
from chainrule.training.fit import fit
from chainrule.types import Source

EOS = 0
LENGTHS = [5, 1, 8, 3]


def one_row(source: Source, number: int) -> Source:
    length = int(source.mask_BS[number].sum())
    return Source(*(part[number : number + 1, :length] for part in source))


def words(scores_BTV: Tensor) -> tuple[Tensor, Any]:
    """The most probable tokens, and the second ones at chosen positions."""
    return scores_BTV.argmax(2), lambda row_M, place_M: second_best(scores_BTV[row_M, place_M])


@torch.inference_mode()
def greedy(model: Any, source: Source, limits: list[int]) -> list[list[int]]:
    first_B1 = torch.full((len(limits), 1), EOS)
    found = beam_search(model, model.start(source), first_B1, eos=EOS, beams=1, max_new_tokens=limits)
    return [hypotheses[0].tokens for hypotheses in found]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    gamma=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    threshold=st.sampled_from([0.0, 0.01, 0.2]),
    nar=st.sampled_from(["positions", "ctc"]),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    limit=st.integers(1, 14),
)
def test_drafts_do_not_change_greedy_search(
    seed: int, gamma: float, threshold: float, nar: str, lengths: list[int], limit: int
) -> None:
    gamma = 0.0 if nar == "ctc" else gamma
    options: dict[str, Any] = {"gamma": gamma, "allocation_threshold": threshold, "nar": nar}
    model = small_translator("hybrid", seed=seed, **options).double()
    source = some_source(lengths, seed=seed, padding=seed % 3)
    limits = [1 + (limit + 5 * row) % 14 for row in range(len(lengths))]
    rows, passes = draft_in_parallel(model, source, eos=EOS, limits=limits)
    assert rows == greedy(model, source, limits)
    assert all(1 <= count <= len(row) for count, row in zip(passes, rows, strict=True))


def test_a_right_draft_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = 0
    for seed in range(12):
        model, source = small_translator("hybrid", seed=seed, gamma=0.5 * (seed % 2)).double(), some_source(LENGTHS)
        right = greedy(model, source, [9] * 4)
        drafted_BT = torch.tensor([[*row, *[EOS] * (9 - len(row))] for row in right])
        scores_BTV = functional.one_hot(drafted_BT, model.output.size).double()
        lengths_B = torch.tensor([len(row) for row in right])
        drafted = *words(scores_BTV), lengths_B
        monkeypatch.setattr(model, "draft_words", lambda *_, given=drafted: given)
        rows, passes = draft_in_parallel(model, source, eos=EOS, limits=[9] * 4)
        assert rows == right
        # Drafts have no adjacent repetitions, so only rows without them are drafted completely.
        plain = [count for row, count in zip(rows, passes, strict=True) if row in (merge(row), [*merge(row), EOS])]
        assert set(plain) <= {1}
        tested += len(plain)
    assert tested >= 5


def test_a_draft_uses_the_scores_that_the_mixture_has_computed() -> None:
    model, source = small_translator("hybrid", gamma=0.5), some_source(LENGTHS)
    with torch.inference_mode():
        encoded = model.encode(source)
        known_BT, known, lengths_B = model.draft_words(encoded, model.begin_decoding(encoded, stepping=True))
        words_BT, seconds, same_B = model.draft_words(encoded, model.begin_decoding(encoded, stepping=False))
        assert lengths_B.tolist() == same_B.tolist()
        for number, length in enumerate(lengths_B.tolist()):
            places_T, row_T = torch.arange(length), torch.full((length,), number)
            assert known_BT[number, :length].tolist() == words_BT[number, :length].tolist()
            (token_T, gap_T), (expected_T, expected_gap_T) = known(row_T, places_T), seconds(row_T, places_T)
            assert token_T.tolist() == expected_T.tolist()
            torch.testing.assert_close(gap_T, expected_gap_T, rtol=1e-4, atol=1e-4)


def test_rows_of_a_batch_are_independent() -> None:
    model, source = small_translator("hybrid", seed=3).double(), some_source(LENGTHS)
    limits = [9, 4, 12, 7]
    rows, passes = draft_in_parallel(model, source, eos=EOS, limits=limits)
    for options in ({}, {"refine": 2}, {"lengths": 3}, {"lengths": 4, "refine": 1}):
        together = translate_in_parallel(model, source, eos=EOS, **options)
        for number in range(4):
            assert translate_in_parallel(model, one_row(source, number), eos=EOS, **options) == [together[number]]
    for number in range(4):
        alone = draft_in_parallel(model, one_row(source, number), eos=EOS, limits=limits[number : number + 1])
        assert alone == ([rows[number]], [passes[number]])


def expected_tokens(scores_TV: Tensor) -> list[int]:
    """The best token of each position up to eos; of adjacent equals the most certain stays, others may be replaced."""
    order_TV = scores_TV.argsort(1, descending=True).tolist()
    best = [order[0] for order in order_TV]
    best = best[: best.index(EOS)] if EOS in best else best
    gaps = [float(scores_TV[t, order[0]] - scores_TV[t, order[1]]) for t, order in enumerate(order_TV)]
    tokens: list[int] = []
    begin = 0
    for end in range(1, len(best) + 1):
        if end < len(best) and best[end] == best[begin]:
            continue
        most_certain = gaps.index(max(gaps[begin:end]), begin)
        for place in range(begin, end):
            if place == most_certain:
                tokens.append(best[place])
            elif math.exp(-gaps[place]) >= 0.5:
                tokens.append(order_TV[place][1])
        begin = end
    return merge(tokens)


def merge(tokens: list[int]) -> list[int]:
    """The tokens before eos, each run of equal tokens once."""
    kept: list[int] = []
    for token in tokens:
        if token == EOS:
            break
        if not kept or token != kept[-1]:
            kept.append(token)
    return kept


@torch.inference_mode()
def test_one_pass_gives_the_most_probable_token_of_each_position() -> None:
    model, source = small_translator("hybrid"), some_source(LENGTHS)
    encoded = model.encode(source)
    for number, row in enumerate(translate_in_parallel(model, source, eos=EOS)):
        length = int(model.predict_lengths(encoded)[number, 0])
        features_TD = model.core.parallel_features(
            encoded,
            model.core.read_allocation(encoded),
            model.predict_lengths(encoded)[:, 0] + 1,
            model.config.allocation_threshold,
        )[number, :length]
        assert row == expected_tokens(model.output.base.log_probs(features_TD))


@torch.inference_mode()
def test_a_repeated_token_is_replaced_by_a_second_choice_of_similar_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, source = small_translator("hybrid"), some_source([6])
    scores_TV = torch.tensor([[0.0, 5, 1, 4.9], [0.0, 9, 1, 2], [0.0, 1, 7, 6], [0.0, 1, 7, 0], [0.0, 1, 2, 5]])
    predicted = words(scores_TV[None])
    monkeypatch.setattr(model, "predict_words", lambda *_, given=predicted: given)
    monkeypatch.setattr(model, "predict_lengths", lambda *_: torch.tensor([[5]]))
    # The first token is replaced by its second choice, the third is left out.
    assert translate_in_parallel(model, source, eos=EOS) == [[3, 1, 2, 3]]
    assert expected_tokens(scores_TV) == [3, 1, 2, 3]
    for seed in range(300):
        torch.manual_seed(seed)
        scores_TV = 3 * torch.rand(9, 4)
        predicted = words(scores_TV[None])
        monkeypatch.setattr(model, "predict_words", lambda *_, given=predicted: given)
        monkeypatch.setattr(model, "predict_lengths", lambda *_: torch.tensor([[9]]))
        assert translate_in_parallel(model, source, eos=EOS) == [expected_tokens(scores_TV)]


@torch.inference_mode()
def test_the_length_with_the_best_mean_log_p_per_token_is_selected() -> None:
    chosen = set()
    for seed in range(8):
        model, source = small_translator("hybrid", seed=seed), some_source(LENGTHS)
        encoded = model.encode(source)
        lengths_BK = model.predict_lengths(encoded, 4)
        found = translate_in_parallel(model, source, lengths=4, eos=EOS)
        model.config = model.config.model_copy(
            update={"gamma": 0.0}
        )  # candidates are ranked by the autoregressive branch
        for number, row in enumerate(found):
            candidates, scores = [], []
            for length in lengths_BK[number].tolist():
                some = model.encode(one_row(source, number))
                tokens = expected_tokens(model.predict_parallel(some, torch.tensor([length]))[0, :length])
                log_prob_T = model.log_probs(torch.tensor([[*tokens, EOS]]), one_row(source, number))[0]
                candidates.append(tokens)
                scores.append(float(log_prob_T.mean()))
            best = max(range(4), key=scores.__getitem__)
            assert row == candidates[best]
            chosen.add(best)
    assert len(chosen) > 1  # not always the most probable length


@torch.inference_mode()
def test_refinement_predicts_the_least_certain_tokens_again_given_the_others() -> None:
    model, source = small_translator("hybrid", seed=1), some_source([9])
    encoded = model.encode(source)
    length_1 = model.predict_lengths(encoded)[:, 0].clamp(min=6)
    model.predict_lengths = lambda encoded, count=1: length_1[:, None]
    log_prob_T, tokens_T = model.predict_parallel(encoded, length_1)[0].log_softmax(1).max(1)
    for share in (2 / 3, 1 / 3):  # two further passes
        masked = -(-int(length_1) * share // 1)
        order = sorted(range(int(length_1)), key=lambda t: float(log_prob_T[t]))
        shown_T = torch.ones(int(length_1), dtype=torch.bool)
        shown_T[order[: int(masked)]] = False
        scores_1TV = model.predict_parallel(encoded, length_1, (tokens_T[None], shown_T[None]))
        new_log_prob_T, new_T = scores_1TV[0].log_softmax(1).max(1)
        tokens_T = torch.where(shown_T, tokens_T, new_T)
        log_prob_T = torch.where(shown_T, log_prob_T, new_log_prob_T)
    assert translate_in_parallel(model, source, refine=2, eos=EOS) == [merge(tokens_T.tolist())]


def test_wrong_options_raise_an_error() -> None:
    model, source = small_translator("hybrid"), some_source([3])
    with pytest.raises(ConfigError, match=r"^lengths is 0; expected at least 1$"):
        translate_in_parallel(model, source, lengths=0, eos=EOS)
    with pytest.raises(ConfigError, match=r"^refine is -1; expected at least 0 \(0: a single pass\)$"):
        translate_in_parallel(model, source, refine=-1, eos=EOS)
    with pytest.raises(ConfigError, match=r"^got 2 limits for 1 sources; give one limit per source$"):
        draft_in_parallel(model, source, eos=EOS, limits=[3, 3])
    ctc = small_translator("hybrid", nar="ctc", gamma=0.0)
    with pytest.raises(
        ConfigError,
        match=r"^lengths is 2 and refine is 0, but a CTC model predicts no length and cannot refine; leave them out, "
        r"or train with model\.nar=positions$",
    ):
        translate_in_parallel(ctc, source, lengths=2, eos=EOS)


@pytest.mark.parametrize("nar", ["positions", "ctc"])
def test_a_trained_translator_decodes_the_same_in_fewer_passes(nar: str, tmp_path: Path) -> None:
    pairs = [(source, source.upper()) for source, _ in letter_pairs(400, longest=6)]
    paths = write_pairs(tmp_path, pairs)
    wider = {"embedding": 16, "hidden": 16, "nar": nar, "gamma": 0.0 if nar == "ctc" else 0.1, "dropout": 0.0}
    values = {
        "data": {"train": [str(path) for path in paths], "held_out": 0.1},
        "tokenizer": {"kind": "char"},
        "model": {"name": "hybrid", **small_options("hybrid", **wider)},
        "training": {"steps": 150, "max_tokens": 256, "optimizer": "adamw", "lr": 0.02, "validations": 1},
    }
    run = fit(RunConfig.model_validate(values), tmp_path / "run").folder
    tokenizer = run.read_tokenizer()
    model: Any = load_model(run, tokenizer)
    lines = [source for source, _ in letter_pairs(40, seed=5, longest=6)]
    source = pad_sources([tokenizer.encode(line) for line in lines], tokenizer.eos)
    limits = [20] * 40
    rows, passes = draft_in_parallel(model, source, eos=tokenizer.eos, limits=limits)
    first_B1 = torch.full((40, 1), tokenizer.eos)
    with torch.inference_mode():
        found = beam_search(model, model.start(source), first_B1, eos=tokenizer.eos, beams=1, max_new_tokens=limits)
    assert rows == [hypotheses[0].tokens for hypotheses in found]
    assert sum(passes) < 0.6 * sum(map(len, rows))
    parallel = [tokenizer.decode(row) for row in translate_in_parallel(model, source, eos=tokenizer.eos)]
    right = sum(line.upper() == text for line, text in zip(lines, parallel, strict=True))
    assert right >= 20
