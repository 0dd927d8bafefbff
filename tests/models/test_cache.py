"""The caches against their formulas, written out one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.models import adaptive_cache as module
from chainrule.models.adaptive_cache import ContinuousCache, ContinuousCacheConfig, UnigramCache, UnigramCacheConfig
from chainrule.types import select_rows

V, D, B, T = 7, 5, 3, 23
CPU = torch.device("cpu")
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
Make = Callable[[], Any]
MAKERS: list[Make] = [
    lambda: UnigramCache(UnigramCacheConfig(decay=0.9), V),
    lambda: UnigramCache(UnigramCacheConfig(decay=1.0), V),
    lambda: ContinuousCache(ContinuousCacheConfig(theta=0.3, window=8), V, D),
    lambda: ContinuousCache(ContinuousCacheConfig(theta=2.0, window=1), V, D),
    lambda: ContinuousCache(ContinuousCacheConfig(theta=0.3, window=100), V, D),
]
caches = pytest.mark.parametrize("make", MAKERS, ids=["decay", "forever", "window", "one", "all"])


def some() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randint(0, V, (B, T), generator=generator),
        torch.randn(B, T, D, generator=generator),
    )


def naive_unigram(tokens: list[int], decay: float) -> list[float]:
    """p(. | tokens) by the formula."""
    if not tokens:
        return [1 / V] * V
    weights = [decay ** (len(tokens) - 1 - i) for i in range(len(tokens))]
    return [sum(w for w, x in zip(weights, tokens, strict=True) if x == v) / sum(weights) for v in range(V)]


def naive_continuous(tokens: list[int], keys: list[Tensor], now: Tensor, theta: float, window: int) -> list[float]:
    """p(. | tokens) by the formula; keys[i] predicted tokens[i]."""
    tokens, keys = tokens[-window:], keys[-window:]
    if not tokens:
        return [1 / V] * V
    weights = [math.exp(theta * float(now.double() @ key.double())) for key in keys]
    return [sum(w for w, x in zip(weights, tokens, strict=True) if x == v) / sum(weights) for v in range(V)]


def naive(cache: Any, tokens_T: Tensor, hidden_TD: Tensor) -> Tensor:
    """p(. | tokens before t) for every t -> TV."""
    rows = []
    for t in range(len(tokens_T)):
        before = tokens_T[:t].tolist()
        if isinstance(cache, UnigramCache):
            rows.append(naive_unigram(before, cache.config.decay))
        else:
            options = cache.config
            rows.append(naive_continuous(before, list(hidden_TD[:t]), hidden_TD[t], options.theta, options.window))
    return torch.tensor(rows, dtype=torch.float64)


@caches
def test_scores_and_rows_are_the_formula(make: Make) -> None:
    cache, (tokens_BT, hidden_BTD) = make(), some()
    expected_BTV = torch.stack([naive(cache, *row) for row in zip(tokens_BT, hidden_BTD, strict=True)])
    scored_BT, _ = cache.score(tokens_BT, hidden_BTD, cache.start(B, CPU))
    torch.testing.assert_close(
        scored_BT.double().exp(), expected_BTV.gather(2, tokens_BT[:, :, None])[:, :, 0], **CLOSE
    )
    state = cache.start(B, CPU)
    for t in range(T):
        row_BV = cache.log_probs(hidden_BTD[:, t], state).double().exp()
        torch.testing.assert_close(row_BV, expected_BTV[:, t], **CLOSE)
        state = cache.read(tokens_BT[:, t : t + 1], hidden_BTD[:, t : t + 1], state)


@caches
def test_chunks_of_any_size_give_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, (tokens_BT, hidden_BTD) = make(), some()
    whole_BT, after = cache.score(tokens_BT, hidden_BTD, cache.start(B, CPU))
    state, pieces = cache.start(B, CPU), []
    for piece_BT, part_BTD in zip(tokens_BT.split([1, 9, 4, 9], 1), hidden_BTD.split([1, 9, 4, 9], 1), strict=True):
        scored, state = cache.score(piece_BT, part_BTD, state)
        pieces.append(scored)
    torch.testing.assert_close(torch.cat(pieces, 1), whole_BT, **CLOSE)
    monkeypatch.setattr(module, "BLOCK", 4)  # columns per internal block
    blocks_BT, other = cache.score(tokens_BT, hidden_BTD, cache.start(B, CPU))
    torch.testing.assert_close(blocks_BT, whole_BT, **CLOSE)
    for one, two, three in zip(after, state, other, strict=True):
        torch.testing.assert_close(one, two, **CLOSE)
        torch.testing.assert_close(one, three, **CLOSE)


@caches
def test_a_state_is_never_changed_and_its_rows_can_be_selected(make: Make) -> None:
    cache, (tokens_BT, hidden_BTD) = make(), some()
    _, state = cache.score(tokens_BT[:, :10], hidden_BTD[:, :10], cache.start(B, CPU))
    before = cache.log_probs(hidden_BTD[:, 10], state)
    cache.score(tokens_BT[:, 10:], hidden_BTD[:, 10:], state)
    cache.read(tokens_BT[:, 10:], hidden_BTD[:, 10:], state)
    assert torch.equal(cache.log_probs(hidden_BTD[:, 10], state), before)
    rows_K = torch.tensor([2, 0, 2, 1])
    selected = cache.log_probs(hidden_BTD[rows_K, 10], select_rows(state, rows_K))
    torch.testing.assert_close(selected, before[rows_K], **CLOSE)


def test_large_similarities_do_not_overflow() -> None:
    cache = ContinuousCache(ContinuousCacheConfig(theta=50.0, window=4), V, D)
    tokens_BT, hidden_BTD = some()
    scored_BT, state = cache.score(tokens_BT, 10 * hidden_BTD, cache.start(B, CPU))
    assert not scored_BT.isnan().any()
    row_BV = cache.log_probs(10 * hidden_BTD[:, 0], state)
    torch.testing.assert_close(row_BV.exp().sum(1), torch.ones(B), **CLOSE)


@pytest.mark.parametrize(
    ("batch", "compared", "columns"), [(1, 256, 256), (1, 2256, 256), (64, 2256, 58), (9999, 999, 1)]
)
def test_the_number_of_comparisons_at_once_is_bounded(batch: int, compared: int, columns: int) -> None:
    assert module._columns_per_pass(batch, compared) == columns
