"""A translator so small that all its translations can be enumerated, and sums over them.

N is the number of enumerated sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.objectives.rollout import Samples, make_samples
from chainrule.types import Batch, Outputs, Source, select_rows

EOS = 0


class TablePrefix(NamedTuple):
    source_B: Tensor
    place_B: Tensor


class TableOutput(nn.Module):
    """An output layer whose features are scores."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def log_probs(self, scores_NV: Tensor) -> Tensor:
        return scores_NV.log_softmax(-1)

    def log_prob(self, scores_NV: Tensor, targets_N: Tensor) -> Tensor:
        return self.log_probs(scores_NV).gather(1, targets_N[:, None])[:, 0]

    def loss(self, scores_NV: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        return -(self.log_prob(scores_NV, targets_N) * (1 if weights_N is None else weights_N)).sum()


class TableTranslator(nn.Module):
    """The scores of the next token are a parameter for each source, position and previous token: ATVV.

    The first token of a source is its number.
    """

    def __init__(self, sources: int = 2, places: int = 3, size: int = 3, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        shape = (sources, places, size, size)
        self.scores_ATVV = nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64))
        self.output, self.eos, self.window = TableOutput(size), EOS, places
        self.rows_stepped = 0

    def start(self, source: Source) -> TablePrefix:
        return TablePrefix(source.tokens_BS[:, 0], torch.zeros_like(source.tokens_BS[:, 0]))

    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        self.rows_stepped += len(token_B)
        scores_BV = self.scores_ATVV[state.source_B, state.place_B, token_B]
        return scores_BV.log_softmax(1), TablePrefix(state.source_B, state.place_B + 1)

    def select(self, state: TablePrefix, rows_K: Tensor) -> TablePrefix:
        chosen: TablePrefix = select_rows(state, rows_K)
        return chosen

    def forward(self, batch: Batch, state: Any = None) -> Outputs:
        assert batch.source is not None
        place_1T = torch.arange(batch.inputs_BT.shape[1])[None]
        return Outputs(self.scores_ATVV[batch.source.tokens_BS[:, :1], place_1T, batch.inputs_BT], None)

    def policy_features(self, batch: Batch) -> Tensor:
        scores_BTV: Tensor = self(batch).hidden_BTD
        return scores_BTV


def table_batch(references: list[list[int]], sources: list[int] | None = None) -> Batch:
    """A batch of sources with given numbers (default: 0, 1, …) and references without `eos`."""
    sources = list(range(len(references))) if sources is None else sources
    T = max(map(len, references)) + 1
    targets_BT = torch.tensor([row + [EOS] * (T - len(row)) for row in references])
    weights_BT = (torch.arange(T) <= torch.tensor([len(row) for row in references])[:, None]).float()
    inputs_BT = torch.cat([torch.full((len(references), 1), EOS), targets_BT[:, :-1]], 1)
    tokens_BS = torch.tensor(sources)[:, None]
    return Batch(inputs_BT, targets_BT, weights_BT, Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool)))


def all_sequences(size: int, limit: int) -> list[tuple[int, ...]]:
    """All sequences of at most `limit` tokens: those that end with `eos`, and those cut at the limit."""
    words = range(1, size)
    ended = [(*row, EOS) for T in range(limit) for row in itertools.product(words, repeat=T)]
    return [*ended, *itertools.product(words, repeat=limit)]


def as_samples(rows: list[tuple[int, ...]]) -> Samples:
    T = max(map(len, rows))
    return make_samples(torch.tensor([[*row, *[EOS] * (T - len(row))] for row in rows]), EOS)


def sequence_log_probs(model: Any, source: Source, rows: list[tuple[int, ...]]) -> Tensor:
    """log p(y | x) of each sequence for a source of one row -> N."""
    return torch.stack([_log_prob(model, source, row) for row in rows])


def _log_prob(model: Any, source: Source, row: tuple[int, ...]) -> Tensor:
    if hasattr(model, "log_probs") and torch.is_grad_enabled():  # the steps of a network have no gradient
        scored: Tensor = model.log_probs(torch.tensor([row]), source).sum()
        return scored
    state, before, total = model.start(source), EOS, torch.zeros(())
    for token in row:
        log_probs_1V, state = model.step(state, torch.tensor([before]))
        total, before = total + log_probs_1V[0, token], token
    return total


def some_reward(rows: list[list[int]], references: list[list[int]]) -> np.ndarray[Any, Any]:
    """A number from 0 to 1 that depends on the whole row and on its reference."""
    numbers = [
        sum((place + 1) * token for place, token in enumerate([*row, *reference, 7]))
        for row, reference in zip(rows, references, strict=True)
    ]
    return np.array([number * 37 % 101 / 100 for number in numbers])


def rewards_of(rows: list[tuple[int, ...]], reference: list[int]) -> Tensor:
    """`some_reward` of each sequence -> N."""
    bare = [[token for token in row if token != EOS] for row in rows]
    return torch.tensor(some_reward(bare, [reference] * len(rows)))


def with_samples(objective: Any, rows: list[tuple[int, ...]]) -> Any:
    """The objective with these rows as its samples."""
    objective.sample = lambda model, batch, source, **options: as_samples(rows)
    return objective


def one_row(source: Source | None, number: int = 0) -> Source:
    """One row of a source, as a source."""
    assert source is not None
    return Source(*(part[number : number + 1] for part in source))


def gradients(total: Tensor, model: nn.Module) -> list[Tensor]:
    """The gradient of a scalar for each parameter of a model; zeros where there is none."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def sum_gradients(terms: Iterator[list[Tensor]]) -> list[Tensor]:
    """The sum of gradients, parameter by parameter."""
    return [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


def assert_close(ours: list[Tensor], expected: list[Tensor], rtol: float = 1e-6) -> None:
    """Assert equality up to a share of the largest entry of all tensors."""
    largest = max(float(one.abs().max()) for one in expected)
    assert largest > 0
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=rtol * largest)


def chi_square(counts_N: Tensor, probs_N: Tensor) -> float:
    """Σ (observed - expected)² / expected, in standard deviations above its mean; rare cells are merged."""
    expected_N = probs_N.double() / probs_N.double().sum() * counts_N.sum()
    rare_N = expected_N < 5
    observed_N, expected_N = (torch.cat([one[~rare_N], one[rare_N].sum()[None]]) for one in (counts_N, expected_N))
    possible_N = expected_N > 0
    assert observed_N[~possible_N].sum() == 0
    statistic = float(((observed_N - expected_N) ** 2 / expected_N)[possible_N].sum())
    freedom = int(possible_N.sum()) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


@torch.no_grad()
def expected_reward(model: TableTranslator, references: list[list[int]]) -> float:
    """Σ_y p(y | x) r(y), averaged over the sources 0, 1, … with these references."""
    rows = all_sequences(model.output.size, model.window)
    sources = [
        Source(torch.tensor([[number]]), torch.ones(1, 1, dtype=torch.bool)) for number in range(len(references))
    ]
    pairs = zip(sources, references, strict=True)
    rewards = [
        sequence_log_probs(model, source, rows).exp() @ rewards_of(rows, reference) for source, reference in pairs
    ]
    return float(sum(rewards)) / len(rewards)
