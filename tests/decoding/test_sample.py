"""The filters against their definitions, the samples against their probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chainrule.decoding import Sample
from chainrule.decoding.over_arrays import keep
from chainrule.decoding.sample import apply_temperature, draw, keep_min_p, keep_top_k, keep_top_p
from chainrule.errors import ConfigError


def distribution(size: int, seed: int, ties: bool = False) -> Tensor:
    logits_V = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    return (logits_V.round() if ties else logits_V).log_softmax(0)


def kept_tokens(filtered_V: Tensor) -> set[int]:
    return set((filtered_V > -math.inf).nonzero().flatten().tolist())


def naive_top_k(log_probs: list[float], k: int) -> set[int]:
    least = sorted(log_probs, reverse=True)[min(k, len(log_probs)) - 1]
    return {v for v, value in enumerate(log_probs) if value >= least}


def naive_top_p(log_probs: list[float], p: float) -> set[int]:
    mass, least = 0.0, math.inf
    for value in sorted(log_probs, reverse=True):
        if mass >= p:
            break
        mass, least = mass + math.exp(value), value
    return {v for v, value in enumerate(log_probs) if value >= least}


@settings(deadline=None)
@given(size=st.integers(1, 12), seed=st.integers(0, 999), k=st.integers(1, 15), ties=st.booleans())
def test_top_k_equals_its_definition(size: int, seed: int, k: int, ties: bool) -> None:
    log_probs_V = distribution(size, seed, ties)
    filtered_V = keep_top_k(log_probs_V[None], k)[0]
    assert kept_tokens(filtered_V) == naive_top_k(log_probs_V.tolist(), k)
    assert all(filtered_V[v] == log_probs_V[v] for v in kept_tokens(filtered_V))


@settings(deadline=None)
@given(size=st.integers(1, 12), seed=st.integers(0, 999), p=st.floats(0.001, 0.999), ties=st.booleans())
def test_top_p_equals_its_definition(size: int, seed: int, p: float, ties: bool) -> None:
    log_probs_V = distribution(size, seed, ties)
    filtered_V = keep_top_p(log_probs_V[None], p)[0]
    assert kept_tokens(filtered_V) == naive_top_p(log_probs_V.tolist(), p)
    assert all(filtered_V[v] == log_probs_V[v] for v in kept_tokens(filtered_V))


@settings(deadline=None)
@given(size=st.integers(1, 12), seed=st.integers(0, 999), p=st.floats(0.001, 0.999), ties=st.booleans())
def test_min_p_equals_its_definition(size: int, seed: int, p: float, ties: bool) -> None:
    log_probs_V = distribution(size, seed, ties)
    filtered_V = keep_min_p(log_probs_V[None], p)[0]
    best = max(log_probs_V.tolist())
    assert kept_tokens(filtered_V) == {v for v, value in enumerate(log_probs_V.tolist()) if value >= best + math.log(p)}
    assert all(filtered_V[v] == log_probs_V[v] for v in kept_tokens(filtered_V))


def test_min_p_at_its_ends_keeps_all_tokens_or_the_best() -> None:
    log_probs_V = torch.tensor([0.1, 0.4, 0.1, 0.4], dtype=torch.float64).log()
    assert kept_tokens(keep_min_p(log_probs_V[None], 0.0)[0]) == {0, 1, 2, 3}
    assert kept_tokens(keep_min_p(log_probs_V[None], 1.0)[0]) == {1, 3}
    assert kept_tokens(keep_min_p(log_probs_V[None], 0.26)[0]) == {1, 3}
    assert kept_tokens(keep_min_p(log_probs_V[None], 0.24)[0]) == {0, 1, 2, 3}


@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.5])
def test_sampling_filters_as_transformers_does(min_p: float) -> None:
    import transformers

    log_probs_BV = torch.stack([distribution(40, seed).float() for seed in range(20)])
    warpers = [
        transformers.TemperatureLogitsWarper(1.5),
        transformers.TopKLogitsWarper(20),
        transformers.TopPLogitsWarper(0.8),
        transformers.MinPLogitsWarper(min_p),
    ]
    expected_BV = log_probs_BV
    for warper in warpers:
        expected_BV = warper(None, expected_BV)
    assert torch.equal(Sample(1.5, 20, 0.8, min_p).filtered(log_probs_BV), expected_BV)


def test_top_p_normalises_over_the_tokens_that_top_k_kept() -> None:
    log_probs_V = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    top_2_V = keep_top_k(log_probs_V[None], 2)
    assert kept_tokens(keep_top_p(top_2_V, 0.5)[0]) == {0}  # 0.4 / 0.7 reaches a half
    assert kept_tokens(keep_top_p(log_probs_V[None], 0.5)[0]) == {0, 1}


def test_the_smallest_top_p_keeps_the_best_token() -> None:
    log_probs_V = torch.tensor([0.2, 0.5, 0.3]).log()
    assert kept_tokens(keep_top_p(log_probs_V[None], 1e-320)[0]) == {1}
    kept_BV = keep(log_probs_V[None].numpy(), Sample(top_p=1e-320))
    assert kept_tokens(torch.from_numpy(kept_BV)[0]) == {1}


def test_extreme_values_keep_all_tokens_or_one() -> None:
    tail_V = torch.tensor([0.0, -60.0, -90.0]).log_softmax(0)  # a mass that rounds to 1 after one token
    assert kept_tokens(keep_top_p(tail_V[None], 1.0)[0]) == {0, 1, 2}
    assert kept_tokens(keep_top_k(tail_V[None], 3)[0]) == {0, 1, 2}
    assert kept_tokens(keep_top_p(tail_V[None], 1e-9)[0]) == {0}


@settings(deadline=None)
@given(seed=st.integers(0, 999), temperature=st.floats(0.05, 20))
def test_temperature_raises_probabilities_to_a_power(seed: int, temperature: float) -> None:
    log_probs_V = distribution(6, seed)
    powers_V = log_probs_V.exp() ** (1 / temperature)
    torch.testing.assert_close(apply_temperature(log_probs_V, temperature).softmax(0), powers_V / powers_V.sum())


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-12])
def test_temperature_zero_is_greedy(temperature: float) -> None:
    log_probs_BV = torch.stack([distribution(50, seed).float() for seed in range(20)])
    log_probs_BV[:, 7] = -math.inf
    assert torch.equal(Sample(temperature)(log_probs_BV), log_probs_BV.argmax(1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.8},
    ],
)
def test_samples_follow_the_filtered_distribution(options: dict[str, float]) -> None:
    log_probs_V = distribution(8, 3)
    scores_V = [value / options.get("temperature", 1.0) for value in log_probs_V.tolist()]
    kept = naive_top_k(scores_V, int(options.get("top_k", 8)))
    whole = math.log(sum(math.exp(scores_V[v]) for v in kept))
    scores_V = [value - whole if v in kept else -math.inf for v, value in enumerate(scores_V)]
    kept = naive_top_p(scores_V, options.get("top_p", 1.1))
    kept &= {v for v, value in enumerate(scores_V) if value >= max(scores_V) + math.log(options.get("min_p", 1e-9))}
    expected_V = torch.tensor([math.exp(value) if v in kept else 0.0 for v, value in enumerate(scores_V)])
    draws = 40_000
    choose = Sample(**options, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    counts_V = choose(log_probs_V.expand(draws, 8)).bincount(minlength=8)
    spread_V = (expected_V * draws).sqrt() * 5
    expected_V = expected_V / expected_V.sum()
    assert ((counts_V - expected_V * draws).abs() <= spread_V).all()


@settings(deadline=None)
@given(seed=st.integers(0, 9999))
def test_impossible_tokens_are_never_drawn(seed: int) -> None:
    log_probs_BV = torch.full((64, 5), -math.inf)
    log_probs_BV[:, 2] = math.log(0.5)
    log_probs_BV[:, 3] = math.log(0.5)
    assert set(draw(log_probs_BV, torch.Generator().manual_seed(seed)).tolist()) <= {2, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": -1.0},
            "temperature is -1.0; expected a number of at least 0 (0: greedy)",
        ),
        (
            {"temperature": math.inf},
            "temperature is inf; expected a number of at least 0 (0: greedy)",
        ),
        ({"top_k": 0}, "top_k is 0; expected at least 1: leave it out to keep all tokens"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number above 0 and at most 1 (1: all tokens)"),
        ({"top_p": 1.5}, "top_p is 1.5; expected a number above 0 and at most 1 (1: all tokens)"),
        ({"min_p": 1.5}, "min_p is 1.5; expected a number from 0 (all tokens) to 1"),
        ({"min_p": math.nan}, "min_p is nan; expected a number from 0 (all tokens) to 1"),
        ({"top_p": math.nan}, "top_p is nan; expected a number above 0 and at most 1 (1: all tokens)"),
    ],
)
def test_wrong_options_raise_an_error(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sample(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
