"""The n-gram model: lines scored separately, stepping, depths and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import counted_model, some_vocabulary
from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.models.ngram import Ngram, NgramConfig

EOS = 0
VARIANTS = pytest.mark.parametrize(
    "options",
    [
        {"order": 4},
        {"order": 4, "across_lines": True},
        {"order": 1},
        {"order": 3, "quantize": True},
        {"order": 3, "smoothing": "stupid-backoff"},
        {"order": 3, "smoothing": "mle", "across_lines": True},
    ],
    ids=str,
)


def made(**options: Any) -> Ngram:
    return counted_model(some_vocabulary(eos=EOS), **options)


# Lines


@VARIANTS
@settings(max_examples=15, deadline=None)
@given(tokens=st.lists(st.integers(0, 12), max_size=60), ended=st.booleans())
def test_lines_are_scored_separately(options: dict[str, Any], tokens: list[int], ended: bool) -> None:
    model = made(**options)
    stream = [*tokens, EOS] if ended else tokens
    lines: list[list[int]] = [[]]
    for token in stream:
        lines[-1].append(token)
        if token == EOS:
            lines.append([])
    lines = [line for line in lines if line]
    nats_L, tokens_L = model.score_lines(np.array(stream, np.int32))
    assert tokens_L.tolist() == [len(line) for line in lines]
    alone = [float(model.log_probs(torch.tensor([line])).double().sum()) for line in lines]
    assert nats_L.tolist() == pytest.approx(alone, rel=1e-5)


def test_no_tokens_are_no_lines() -> None:
    nats_L, tokens_L = made(order=3).score_lines(np.empty(0, np.uint16))
    assert (nats_L.tolist(), tokens_L.tolist()) == ([], [])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.uint32, np.int64])
def test_any_width_of_tokens_is_scored_alike(dtype: Any) -> None:
    model, tokens = made(order=4), np.array([3, 1, 0, 0, 2, 2, 12, 0, 5])
    nats_L, tokens_L = model.score_lines(tokens.astype(dtype))
    assert nats_L.tolist() == model.score_lines(tokens)[0].tolist()
    assert tokens_L.tolist() == [3, 1, 4, 1]


def test_many_small_scores_are_added_exactly() -> None:
    """A line of 300,000 tokens: single precision would lose the sum."""
    model, tokens = made(order=3), np.random.default_rng(0).integers(1, 13, 300_000)
    [nats], [length] = (part.tolist() for part in model.score_lines(tokens))
    assert length == 300_000
    assert nats == pytest.approx(float(model.log_probs(torch.from_numpy(tokens)[None]).double().sum()), rel=1e-7)


# Stepping


def test_a_prefix_may_begin_with_any_token() -> None:
    """The first token a state is given is a context and not predicted, whatever it is."""
    model = made(order=3, across_lines=True)
    rows_BV, state = model.step(model.start(2), torch.tensor([EOS, 5]))
    longer_BV, _ = model.step(state, torch.tensor([7, 7]))
    again_BV, _ = model.prefill(model.start(2), torch.tensor([[EOS, 7], [5, 7]]))
    assert torch.equal(longer_BV, again_BV)
    assert not torch.allclose(rows_BV[0], rows_BV[1])


def test_a_state_is_not_changed_by_using_it() -> None:
    model = made(order=4)
    _, state = model.prefill(model.start(1), torch.tensor([[EOS, 3, 4]]))
    before = state.clone()
    first, _ = model.step(state, torch.tensor([2]))
    model.score(torch.tensor([[5, 6]]), state)
    model.select(state, torch.tensor([0, 0]))
    again, _ = model.step(state, torch.tensor([2]))
    assert torch.equal(state, before)
    assert torch.equal(first, again)


def test_depths_are_the_longest_known_contexts() -> None:
    """By a second route: the longest context that occurs in the training text."""
    text = np.random.default_rng(0).integers(0, 13, (400, 2)).min(1)  # the text of counted_model
    model, probe = made(order=4, across_lines=True), [1, 2, 3, 12, 12, 0, 1, 1, 1]
    seen = {tuple(window) for n in (1, 2, 3) for window in np.lib.stride_tricks.sliding_window_view([EOS, *text], n)}
    want = []
    for place in range(len(probe)):
        context = [EOS, *probe[:place]][-3:]
        known = (n for n in range(len(context), 0, -1) if n == 1 or tuple(context[-n:]) in seen)
        want.append(next(known))
    tokens_BT = torch.tensor([probe])
    assert model.depths(tokens_BT, model.start(1)).tolist() == [want]
    found, state = [], model.start(1)
    for token in [EOS, *probe[:-1]]:
        _, state = model.step(state, torch.tensor([token]))
        found.append(int(model.depth_rows(state)))
    assert found == want


def test_its_size_is_probabilities_and_backoff_weights() -> None:
    model = made(order=3)
    sizes = model.table.sizes
    assert model.parameter_count == sum(sizes) + sum(sizes[:-1])


# Options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": 9}, "model.order = 9: input should be less than or equal to 8"),
        ({"order": 0}, "model.order = 0: input should be greater than or equal to 1"),
        ({"delta": 0}, "model.delta = 0: input should be greater than 0"),
        (
            {"smoothing": "kneserney"},
            "unknown smoothing 'kneserney': did you mean 'kneser-ney'? Known: absolute, additive, jelinek-mercer, "
            "katz, kneser-ney, mle, modified-kneser-ney, stupid-backoff, witten-bell",
        ),
        (
            {"prune": [1]},
            "prune is 1, but single words cannot be pruned: the first number must be 0; limit the vocabulary with "
            "vocab_size",
        ),
        (
            {"prune": [0, 2, 1]},
            "prune is 0 2 1; expected at most 5 numbers (the order), none smaller than the one before it, for example "
            "0 0 1",
        ),
        (
            {"prune": [0, 0, 1], "order": 2},
            "prune is 0 0 1; expected at most 2 numbers (the order), none smaller than the one before it, for example "
            "0 0 1",
        ),
        (
            {"prune": [0, 1], "smoothing": "katz"},
            "prune is 0 1, but katz does not support it; choose another smoothing",
        ),
        (
            {"prune": [0, 1], "smoothing": "additive"},
            "prune is 0 1, but additive does not support it; choose another smoothing",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(NgramConfig, options, "model")
    assert str(caught.value) == sentence


def test_pruning_nothing_is_allowed_with_every_smoothing() -> None:
    for smoothing in ("katz", "additive"):
        assert parse(NgramConfig, {"prune": [0, 0], "smoothing": smoothing}).prune == (0, 0)
